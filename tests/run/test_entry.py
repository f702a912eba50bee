"""The entry of an experiment: found, checked against its arguments, called; every mistake with its message."""

import sys

import pytest

from msctx.errors import EntryError
from msctx.run.experiment_and_entry import Experiment, resolve


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def make(source: str, entry: str, **args) -> Experiment:
        (tmp_path / "job_of_a_test.py").write_text(source)
        return Experiment({}, file=tmp_path / "x.yaml", entry=entry, args=args)

    return make


def test_a_function_of_a_file_beside_the_yaml(make):
    assert resolve(make("def f(a, b=2): return a + b", "job_of_a_test.py:f", a=1))(None) == 3


def test_a_function_of_a_module(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(make("class A:\n    @staticmethod\n    def f(): return 5", "job_of_a_test:A.f"))(None) == 5


def test_a_parameter_named_run_gets_the_run(make):
    assert resolve(make("def f(run): return run", "job_of_a_test.py:f"))("the run") == "the run"


def test_a_script_runs_as_main_with_its_arguments(make, tmp_path):
    source = "import sys, pathlib; pathlib.Path(sys.argv[1][7:]).write_text(f'{__name__} {sys.argv[2:]}')"
    argv = list(sys.argv)
    resolve(make(source, "job_of_a_test.py", file=tmp_path / "out", lr=0.1))(None)
    assert (tmp_path / "out").read_text() == "__main__ ['--lr=0.1']"
    assert sys.argv == argv


def test_a_script_that_ends_itself(make):
    with pytest.raises(SystemExit, match="3"):
        resolve(make("raise SystemExit(3)", "job_of_a_test.py"))(None)


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("def train(): pass", "job_of_a_test.py:trian", "has no 'trian'; did you mean train?"),
        ("f = 5", "job_of_a_test.py:f", "f is not a function"),
        ("", "nowhere.py:f", "there is no file nowhere.py in "),
        ("", "no_such_module_here:f", "no module named 'no_such_module_here'"),
        ("", "justaname", "write package.module:function"),
        ("import no_such_thing_here", "job_of_a_test.py:f", "no module named 'no_such_thing_here'"),
        ("1/0", "job_of_a_test.py:f", "cannot be imported: ZeroDivisionError: division by zero\nTraceback"),
        ("def f(:", "job_of_a_test.py:f", "SyntaxError"),
    ],
)
def test_an_entry_that_is_not_there(make, source, entry, message):
    with pytest.raises(EntryError) as caught:
        resolve(make(source, entry))
    assert message in str(caught.value)
    assert "msctx/run" not in str(caught.value)  # no frame of ours


def test_arguments_are_checked_before_anything_runs(make):
    with pytest.raises(EntryError) as caught:
        resolve(make("def f(rate, epochs, run=None): raise AssertionError", "job_of_a_test.py:f", rat=1, epochs=2))
    expected = "missing a required argument: 'rate'; it takes (rate, epochs, run=None)"
    assert str(caught.value) == f"entry 'job_of_a_test.py:f': {expected}"


@pytest.mark.parametrize("source", ["def f(): yield 1", "async def f(): pass"])
def test_an_entry_that_runs_nothing_is_refused(make, source):
    with pytest.raises(EntryError, match="to call it runs nothing"):
        resolve(make(source, "job_of_a_test.py:f"))
