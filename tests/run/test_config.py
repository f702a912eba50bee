"""Experiment files and the command line: what they come to, and every mistake with its place."""

import textwrap

import pytest

from msctx.errors import FileError, OptionError
from msctx.run.experiment_and_entry import find_file, is_file, read


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "x.yaml") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def values(experiment) -> dict[str, object]:
    return {name: experiment.settings.get(name).value for name in experiment.settings}


def test_sections(write):
    experiment = read(
        write(
            """\
            context:
              deterministic: ON
              seed: 3
              gpu_config: {conv_allow_tf32: off}
            experiment:
              entry: my.module:train
              args: {lr: 1e-3, sizes: [1, 2]}
            record: {dir: out}
            """
        )
    )
    assert values(experiment) == {"deterministic": "ON", "conv_allow_tf32": False, "seed": 3}
    assert experiment.args == {"lr": 0.001, "sizes": [1, 2]}
    assert (experiment.entry, experiment.name, experiment.record_dir) == ("my.module:train", "x", "out")


def test_overrides_beat_the_file_and_say_where_they_are_from(write):
    file = write("context: {deterministic: ON, preset: debug, seed: 1}\nexperiment: {entry: a:b, args: {a: {b: 1, c: 2}}}\n")
    experiment = read(file, ["deterministic=OFF", "args.a.b=5", "args.name=1,2", "seed=9", "record.dir=elsewhere"])
    settings = experiment.settings
    assert settings.get("deterministic").value == "OFF"
    assert settings.get("deterministic").origin == "command line"
    assert settings.get("seed").value == 9
    assert settings.get("pynative_synchronize").origin == "preset debug"
    assert experiment.args == {"a": {"b": 5, "c": 2}, "name": "1,2"}  # a,b is a value, not a list
    assert experiment.record_dir == "elsewhere"


def test_levels_are_kept_apart(write):
    experiment = read(write("context: {preset: reproducible, seed: 5}\n"), ["runtime_num_threads=2"])
    assert list(experiment.levels) == ["yaml", "command line", "preset"]
    assert len(experiment.settings.layers) == 1
    assert values(experiment) == {"deterministic": "ON", "seed": 5, "thread_invariant": True, "runtime_num_threads": 2}


def test_an_entry_is_needed_to_run(write):
    file = write("context: {}\n")
    assert read(file).entry is None
    with pytest.raises(OptionError, match=r"experiment.entry: is missing"):
        read(file, need_entry=True)


def test_missing_files(tmp_path):
    with pytest.raises(FileError, match="cannot be read: No such file"):
        read(str(tmp_path / "none.yaml"))
    with pytest.raises(FileError, match=r"no such file, and no shipped experiment of that name; did you mean digits\?"):
        read("digit")
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        read(str(tmp_path))


def test_shipped_experiments_are_found_by_name():
    assert find_file("digits").name == "digits.yaml"


@pytest.mark.parametrize(
    ("word", "is_one"), [("a.yaml", True), ("digits", True), ("a=b", False), ("preset=x.yaml", False), ("reproducible", False)]
)
def test_files_and_options(word, is_one):
    assert is_file(word) is is_one
