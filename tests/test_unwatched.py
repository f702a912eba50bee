"""Options of watched models are told at the end where no model was watched; the shipped experiment watches its own."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import MsctxWarning
from msctx.native import watched_models
from msctx.run.experiment_and_entry import read
from msctx.run.runner import run_experiment
from msctx.switches import torch_compiler


@pytest.fixture(autouse=True)
def nobody_has_watched(only_new_objects_are_searched: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gc.collect()
    assert not watched_models.models()
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))


@pytest.mark.parametrize(
    "options", [{"memory_optimize_level": "O1"}, {"external_weight": True}, {"variable_format_optimize": True}]
)
def test_a_scope_without_a_model_is_told_once(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()

    @msctx.context(**options)
    def work() -> None:
        """Nothing that a model does."""

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            work()
    assert [str(w.message) for w in told] == [
        f"{name}={value} did nothing to any model: call msctx.current().watch(model) while it is in force"
    ]
    with (
        pytest.raises(msctx.StrictError, match=f"had no effect:\n  {name}={value} did nothing"),
        msctx.context(strict=True, **options),
    ):
        pass


def test_a_model_of_a_context_that_was_left_is_not_of_the_next() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
    with pytest.warns(MsctxWarning, match="did nothing to any model"), msctx.context(memory_optimize_level="O1"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ctx:
            pass


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_process_is_told_when_the_value_goes(is_watched: bool, recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    msctx.set_context(memory_optimize_level="O1")
    with msctx.context() as ctx:
        if is_watched:
            ctx.watch(model)
    msctx.set_context(memory_optimize_level="O1", seed=0)
    assert not recwarn
    msctx.reset_context()
    assert [str(w.message).partition(":")[0] for w in recwarn] == ["memory_optimize_level=O1 did nothing to any model"][
        is_watched:
    ]


def test_a_run_is_told_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def main():\n    pass\n")
    (tmp_path / "job.yaml").write_text("context: {memory_optimize_level: O1}\nexperiment: {entry: job.py:main}\n")
    with pytest.warns(MsctxWarning, match="memory_optimize_level=O1 did nothing to any model"):
        run_experiment(read(str(tmp_path / "job.yaml")), str(tmp_path / "run"))
    with pytest.raises(msctx.StrictError, match="memory_optimize_level=O1 did nothing to any model"):
        run_experiment(read(str(tmp_path / "job.yaml"), ["strict=true"]), str(tmp_path / "strict"))


SPEED_UP = "parallel_speed_up_json_path"
CONCATENATIONS = f"{SPEED_UP}.enable_concat_eliminate_opt"
KEYS = {
    "hcom_parallel": (False, "DistributedDataParallel"),
    f"{SPEED_UP}.enable_grad_comm_opt": (False, "DistributedDataParallel"),
    f"{SPEED_UP}.enable_task_opt": (True, "DistributedDataParallel models that ctx.watch names and on code"),
    f"{SPEED_UP}.enable_opt_shard_comm_opt": (True, "FSDP2"),
    f"{SPEED_UP}.recompute_comm_overlap": (True, "FSDP2 modules of models that ctx.watch names and on code"),
    f"{SPEED_UP}.matmul_grad_comm_overlap": (True, "code that torch.compile makes"),
    CONCATENATIONS: (True, "code that torch.compile makes"),
}


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compiler, "compiled", set())


@pytest.mark.usefixtures("nothing_is_compiled")
@pytest.mark.parametrize("name", KEYS)
def test_what_moves_communication_and_finds_none_is_told(name: str) -> None:
    """A model of another kind is none."""
    value, kind = KEYS[name]
    model = nn.Linear(2, 2)
    with pytest.warns(MsctxWarning) as told, msctx.context(**{name: value}).watch(model), msctx.context(seed=0):
        model(torch.ones(2, 2))
    (warning,) = told
    assert str(warning.message).startswith(f"{name}={value} did nothing: it acts on {kind}")


class DistributedDataParallel(nn.Linear):
    """A kind of models is known by its name."""


@pytest.mark.parametrize("kind", [nn.Linear, DistributedDataParallel])
def test_a_model_that_is_gone_or_changed_counts_by_its_kind(kind: type[nn.Linear], recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential()
    with msctx.context(hcom_parallel=False) as ctx:
        ctx.watch(kind(2, 2))
        gc.collect()
    with msctx.context(hcom_parallel=False).watch(model):
        model.append(kind(2, 2))
    assert [str(w.message).partition(" ")[0] for w in recwarn] == ["hcom_parallel=False"] * 2 * (kind is nn.Linear)


def test_without_blocks_to_recompute_strict_raises() -> None:
    with (
        pytest.warns(MsctxWarning, match="Sequential has no blocks"),
        pytest.raises(msctx.StrictError, match="memory_optimize_level=O1 did nothing: no watched model has blocks"),
        msctx.context(strict=True, memory_optimize_level="O1") as ctx,
    ):
        ctx.watch(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


@pytest.mark.parametrize("options", [{"jit_syntax_level": "STRICT"}, {"compile_dynamic_mode": True}])
def test_options_of_graph_mode_that_meet_no_call_are_told(options: dict[str, Any]) -> None:
    (name,) = options
    double = msctx.jit(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MsctxWarning)
        with torch.no_grad(), msctx.context(**options):
            double(torch.ones(2))
        with msctx.context(mode="GRAPH_MODE", **options):
            pass
    told = f"{name}={msctx.explain(**options).rows[0].value} did nothing: it acts on functions of msctx.jit, and on modules"
    with pytest.warns(MsctxWarning, match=told), msctx.context(**options):
        nn.Linear(2, 2)(torch.ones(2))


@pytest.mark.usefixtures("nothing_is_compiled")
@pytest.mark.filterwarnings("error::msctx.MsctxWarning")
def test_what_asks_for_nothing_is_not_told() -> None:
    for options in (
        {"memory_optimize_level": "O0"},
        {"memory_optimize_level": "O1", "mode": "GRAPH_MODE"},
        {"external_weight": False, "variable_format_optimize": False},
        {name: not value for name, (value, _) in KEYS.items()},
    ):
        with msctx.context(**options):
            pass


@pytest.mark.usefixtures("nothing_is_compiled")
def test_code_that_was_compiled_outside_does_not_count() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    with pytest.warns(MsctxWarning, match="did nothing: it acts on code"), msctx.context(**{CONCATENATIONS: True}):
        pass
    compiled(torch.ones(2))
