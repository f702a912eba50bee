"""save_graphs: which files there are of code that torch.compile makes, and that looking on changes nothing."""

import gc
import os
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dot_reader
import ir_reader
import pytest
import torch
from fx_graphs import Net
from torch import nn
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import run_and_get_code

import msctx
from msctx.errors import MsctxWarning
from msctx.graph import stages
from msctx.graph.files import Writer
from msctx.options.observation import GraphFiles

NUMBERED = re.compile(r"(?P<stem>\w+)_(?P<serial>\d{4})\.(?P<suffix>ir|dot)")


def train(backend: str = "inductor", net: nn.Module | None = None) -> torch.Tensor:
    torch.manual_seed(0)
    compiled = torch.compile(net or Net(), backend=backend)
    result: torch.Tensor = compiled(torch.randn(2, 3, 8, 8))
    result.sum().backward()
    return result.detach()


def names(folder: Path) -> list[str]:
    """The numbered ones in the order of their numbers, then the others."""
    found = [path.name for path in folder.iterdir()]
    return sorted(found, key=lambda name: (m["serial"] if (m := NUMBERED.fullmatch(name)) else "x", name))


def stems(folder: Path, suffix: str = "ir") -> list[str]:
    return [m["stem"] for name in names(folder) if (m := NUMBERED.fullmatch(name)) and m["suffix"] == suffix]


def read(folder: Path) -> dict[str, ir_reader.File]:
    return {path.name: ir_reader.read(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.ir"))}


# --- levels -----------------------------------------------------------------------------------------------------------

FIRST = ["00_bootstrap", "01_type_inference", "03_auto_monad", "16_validate", "16_validate"]


@pytest.mark.parametrize("level", [0, False])
def test_no_level_no_file(level: int, tmp_path: Path) -> None:
    with msctx.context(save_graphs=level, save_graphs_path=str(tmp_path)):
        train("aot_eager")
    assert names(tmp_path) == []


def test_code_that_runs_eagerly_leaves_nothing(tmp_path: Path) -> None:
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        Net()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert names(tmp_path) == []


def test_level_1_has_what_dynamo_and_aotautograd_made(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        train()
    assert stems(tmp_path) == FIRST
    assert names(tmp_path)[0] == "00_bootstrap_0000.ir"
    assert [file.attrs["graph"] for file in read(tmp_path).values()] == ["graph", "graph", "joint", "forward", "backward"]
    assert {file.attrs["compile_id"] for file in read(tmp_path).values()} == {"0/0"}


@pytest.mark.parametrize("level", [2, pytest.param(True, marks=pytest.mark.full)])
def test_level_2_has_the_back_end_and_its_code_too(level: int, tmp_path: Path) -> None:
    with msctx.context(save_graphs=level, save_graphs_path=str(tmp_path)):
        train()
    assert not {*FIRST} - {*stems(tmp_path)}
    assert [stem for stem in stems(tmp_path) if "graph_build" in stem or "task_emit" in stem] == [
        *("17_task_emit", "graph_build_0", "17_task_emit", "graph_build_1"),
    ]
    assert not [*tmp_path.glob("*.dot")]
    for number in (0, 1):
        assert "buf0" in (tmp_path / f"ir_pre_fusion_{number}.txt").read_text(encoding="utf-8")
        assert "buf0" in (tmp_path / f"ir_post_fusion_{number}.txt").read_text(encoding="utf-8")
        compile((tmp_path / f"output_code_{number}.py").read_text(encoding="utf-8"), "output_code", "exec")


def test_level_2_has_the_passes_that_change_something(tmp_path: Path) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y + x

    with msctx.context(save_graphs=2, save_graphs_path=str(tmp_path)):
        torch.compile(function)(torch.randn(4, 4), torch.randn(4, 4))
    (stem,) = [stem for stem in stems(tmp_path) if stem.startswith("hwopt")]
    files = read(tmp_path)
    before = next(file for name, file in files.items() if name.startswith("17_task_emit"))
    after = next(file for name, file in files.items() if name.startswith(stem))
    assert [node.function for node in before.nodes] == ["PrimFunc_Mm", "PrimFunc_Add"]
    assert [node.function for node in after.nodes] == ["PrimFunc_Addmm"]
    assert stem.endswith(after.attrs["pass"])


def test_level_3_has_each_pass_and_a_drawing_of_each_graph(tmp_path: Path) -> None:
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        train()
    kinds = Counter(stem.partition("_")[0] for stem in stems(tmp_path))
    assert len(stems(tmp_path)) >= 15
    assert kinds["opt"] >= 5
    assert kinds["hwopt"] >= 10
    found = [m for name in names(tmp_path) if (m := NUMBERED.fullmatch(name))]
    assert [int(m["serial"]) for m in found] == [*range(len(found))]
    for graph, drawing in zip(found[::2], found[1::2], strict=True):
        assert (graph["stem"], graph["suffix"], drawing["suffix"]) == (drawing["stem"], "ir", "dot")
        nodes = ir_reader.read((tmp_path / graph[0]).read_text(encoding="utf-8")).counts[0]
        assert len(dot_reader.read((tmp_path / drawing[0]).read_text(encoding="utf-8")).nodes) == nodes


def test_an_inference_has_no_joint_graph(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)), torch.no_grad():
        torch.compile(Net())(torch.randn(2, 3, 8, 8))
    assert stems(tmp_path) == ["00_bootstrap", "01_type_inference", "16_validate"]


@pytest.mark.parametrize(("backend", "found"), [("eager", FIRST[:1]), ("aot_eager", FIRST)])
def test_other_back_ends(backend: str, found: list[str], tmp_path: Path) -> None:
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        train(backend)
    assert stems(tmp_path) == found == stems(tmp_path, "dot")


def test_each_node_has_its_module_and_line(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        train()
    for name, file in read(tmp_path).items():
        (node,) = (
            (node for node in file.nodes if node.function.startswith("PrimFunc_Conv") and "Backward" not in node.function)
            if ("validate_0004" not in name)
            else (node for node in file.nodes if "ConvolutionBackward" in node.function)
        )
        assert "Default/conv-Conv2d/" in node.scope, name
        assert [code for _, _, code in node.lines] == ["pooled = self.conv(x).mean((2, 3))"], name


@pytest.mark.full
def test_higher_order_operators(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))

    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        torch.compile(function)(torch.randn(2, 3))
    files = read(tmp_path)
    assert {len(file.subgraphs) for name, file in files.items() if "bootstrap" in name or "graph_build" in name} == {3}


def test_a_graph_break_makes_more_graphs(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        torch.compile(function, backend="aot_eager")(torch.randn(2))
    files = [file for name, file in read(tmp_path).items() if "bootstrap" in name]
    assert [file.attrs["compile_id"] for file in files] == ["0/0", "1/0"]


@pytest.mark.parametrize("classes", [True, False])
def test_reserve_class_name_in_scope(classes: bool, tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path), reserve_class_name_in_scope=classes):
        train("aot_eager")
    for file in read(tmp_path).values():
        (scope,) = {node.scope.removeprefix("Gradients/") for node in file.nodes if "/conv" in node.scope and "Conv" in node.function
                    and node.scope.startswith("Gradients") is (file.attrs["graph"] == "backward")}  # fmt: skip
        assert scope.startswith("Default/conv-Conv2d/" if classes else "Default/conv/")


# --- graph mode -------------------------------------------------------------------------------------------------------


def test_modules_that_graph_mode_compiles(tmp_path: Path) -> None:
    with msctx.context(mode="GRAPH_MODE", save_graphs=1, save_graphs_path=str(tmp_path)) as context:
        Net()(torch.randn(2, 3, 8, 8)).sum().backward()
        assert len(context.graphs()) == 1
    assert stems(tmp_path) == FIRST
    first = read(tmp_path)["00_bootstrap_0000.ir"]
    assert "<Ref[Tensor[Float32]], (8, 3, 3, 3), ref_key=conv.weight>" in first.parameters.values()
    (node,) = (node for node in first.nodes if "Conv2d" in node.function)
    assert node.scope.startswith("Default/conv-Conv2d/")
    assert [code for _, _, code in node.lines] == ["pooled = self.conv(x).mean((2, 3))"]


@pytest.mark.parametrize(
    ("fused", "last"), [(True, "graph_build_1"), pytest.param(False, "16_validate", marks=pytest.mark.full)]
)
def test_back_ends_of_graph_mode(fused: bool, last: str, tmp_path: Path) -> None:
    with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=fused, save_graphs=2, save_graphs_path=str(tmp_path)):
        Net()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert stems(tmp_path)[-1] == last


def test_what_is_only_compiled_is_written(tmp_path: Path) -> None:
    with msctx.context(mode="GRAPH_MODE", precompile_only=True, save_graphs=1, save_graphs_path=str(tmp_path)):
        assert Net()(torch.randn(2, 3, 8, 8)) is None
    assert stems(tmp_path) == FIRST


# --- looking on changes nothing ---------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_same_code_is_generated(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(2, 3, 8, 8)

    def code() -> list[str]:
        torch._dynamo.reset()
        with inductor.patch(fx_graph_cache=False):
            _, found = run_and_get_code(lambda: torch.compile(net)(x).sum().backward())
        return [one.partition("\n")[2] for one in found]  # the first line has a number that counts up

    plain = code()
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        assert code() == plain
    assert len(plain) == 2


def test_passes_of_the_program_run_and_are_seen(tmp_path: Path) -> None:
    class Own(CustomGraphPass):
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, graph: torch.fx.Graph) -> None:
            self.calls += 1

        def uuid(self) -> Any:
            return "own"

    own = Own()
    with inductor.patch(post_grad_custom_post_pass=own), msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        assert inductor.post_grad_custom_post_pass is own
        train()
    assert own.calls == 2
    assert sum(stem.endswith("post_grad_custom_post_pass") for stem in stems(tmp_path)) == 2


def test_torch_is_as_it_was() -> None:
    def functions() -> list[Any]:
        from torch._dynamo.backends import common
        from torch._dynamo.output_graph import OutputGraph
        from torch._inductor.debug import DebugContext
        from torch.fx.passes.graph_transform_observer import GraphTransformObserver as Pass

        places = (vars(Pass)["__enter__"], vars(Pass)["__exit__"], vars(DebugContext)["__getattr__"])
        return [*places, OutputGraph.call_user_compiler, common.aot_module_simplified]

    before = functions()
    with msctx.context(save_graphs=1):
        inside = functions()
        with msctx.context(save_graphs=0):
            assert functions() == before
        with msctx.context(save_graphs=2):
            assert functions() == inside
        assert functions() == inside
    assert functions() == before
    assert not {*inside} & {*before}


def test_what_somebody_else_has_put_there_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._dynamo.backends import common

    monkeypatch.setattr(common, "aot_module_simplified", common.aot_module_simplified)  # to be put back at the end
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        ours = common.aot_module_simplified

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        monkeypatch.setattr(common, "aot_module_simplified", theirs)
    assert common.aot_module_simplified is theirs
    train("aot_eager")
    assert names(tmp_path) == []


def test_what_somebody_else_has_wrapped_is_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._dynamo.backends import common

    monkeypatch.setattr(common, "aot_module_simplified", common.aot_module_simplified)
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path / "first")):
        ours = common.aot_module_simplified

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        monkeypatch.setattr(common, "aot_module_simplified", theirs)
    for number, found in enumerate((theirs, theirs, ours)):
        monkeypatch.setattr(common, "aot_module_simplified", found)
        torch._dynamo.reset()
        with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path / str(number))):
            train("aot_eager")
        assert stems(tmp_path / str(number)) == FIRST
        assert common.aot_module_simplified is found


def test_what_was_compiled_goes_with_its_graphs(tmp_path: Path) -> None:
    """The compilers that torch makes for each graph, with what they hold."""

    def own(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        held.append(weakref.ref(compiler := Compiler()))
        return aot_module_simplified(graph, inputs, fw_compiler=compiler)

    class Compiler:
        def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
            return make_boxed_func(graph.forward)

    held = list[Any]()
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_module_simplified

        torch.compile(lambda x: x + 1, backend=own)(torch.ones(2))
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in held] == [None]


@pytest.mark.full
def test_entering_loads_neither_dynamo_nor_inductor(passes: Callable[..., str], tmp_path: Path) -> None:
    code = f"""
        import os, sys, msctx
        with msctx.context(save_graphs=2, save_graphs_path={str(tmp_path)!r}, debug_level=1):
            assert not {{"torch._dynamo", "torch._inductor.config"}} & {{*sys.modules}}
            torch.compile(lambda x: x + 1)(torch.ones(2))
            import torch._dynamo.config, torch._functorch.config
            assert torch._dynamo.config.verbose and torch._functorch.config.debug_assert
        assert not torch._dynamo.config.verbose and not torch._functorch.config.debug_assert
        print(sorted(os.listdir({str(tmp_path)!r}))[0])
    """
    assert passes(code).strip() == "00_bootstrap_0000.ir"


# --- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_code_that_torch_has_cached_is_made_again(tmp_path: Path) -> None:
    train()
    torch._dynamo.reset()
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        train()
    assert stems(tmp_path) == FIRST


@pytest.mark.full
def test_a_cache_that_is_asked_for_is_used(tmp_path: Path) -> None:
    options: dict[str, Any] = {"enable_compile_cache": True, "compile_cache_path": str(tmp_path / "cache"), "save_graphs": 2}
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        with msctx.context(**options, save_graphs_path=str(tmp_path / "graphs")):
            train()
        found.append(stems(tmp_path / "graphs"))
    first, both = found
    assert not {*FIRST} - {*first}
    assert both[: len(first)] == first
    assert both[len(first) :] in (FIRST[:1], FIRST[:2])  # torch 2.11 looks into its cache later


def test_code_that_was_compiled_before_is_compiled_again(tmp_path: Path) -> None:
    compiled = torch.compile(Net(), backend="aot_eager")
    compiled(torch.randn(2, 3, 8, 8))
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        compiled(torch.randn(2, 3, 8, 8))
        assert stems(tmp_path)[0] == "00_bootstrap"
        count = len(names(tmp_path))
        compiled(torch.randn(2, 3, 8, 8))
    compiled(torch.randn(2, 3, 8, 8))
    assert len(names(tmp_path)) == count


@pytest.mark.full
def test_a_backward_pass_after_the_scope_is_written(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        result = torch.compile(Net(), dynamic=True)(torch.randn(2, 3, 8, 8))
    before = len(names(tmp_path))
    result.sum().backward()
    assert [file.attrs["graph"] for file in read(tmp_path).values()][-1] == "backward"
    assert before <= len(names(tmp_path))


def test_threads_that_compile_at_once(tmp_path: Path) -> None:
    def work(size: int) -> None:
        torch.compile(lambda x: (x * size).sin().sum(), backend="aot_eager")(torch.randn(size, requires_grad=True)).backward()

    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)) as context:
        threads = [threading.Thread(target=context.bind(work), args=(size,)) for size in (2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    serials = [int(m["serial"]) for name in names(tmp_path) if (m := NUMBERED.fullmatch(name))]
    assert serials == [*range(30)]
    read(tmp_path)


# --- folders ----------------------------------------------------------------------------------------------------------


def test_the_folder_is_there_as_soon_as_the_option_is(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path / "a" / "b")):
        assert (tmp_path / "a" / "b").is_dir()
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_path_is_that_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with msctx.context(save_graphs=1, save_graphs_path="graphs"):
        monkeypatch.chdir(tmp_path / "elsewhere")
        train("aot_eager")
    assert stems(tmp_path / "graphs") == FIRST


def test_a_rank_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        train("aot_eager")
    assert names(tmp_path) == ["rank_1"]
    assert stems(tmp_path / "rank_1") == FIRST


def test_nothing_that_is_there_is_touched(tmp_path: Path) -> None:
    for name in ("00_bootstrap_0000.ir", "graph_build_4_0011.ir", "output_code_5.py", "notes.txt"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    with msctx.context(save_graphs=2, save_graphs_path=str(tmp_path)):
        train()
    for name in ("00_bootstrap_0000.ir", "graph_build_4_0011.ir", "output_code_5.py", "notes.txt"):
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "00_bootstrap_0012.ir").exists()
    assert [*tmp_path.glob("graph_build_5_*.ir")]


def test_a_name_that_another_process_takes_is_left_to_it(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        (tmp_path / "00_bootstrap_0001.ir").write_text("theirs", encoding="utf-8")
        torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert (tmp_path / "00_bootstrap_0001.ir").read_text(encoding="utf-8") == "theirs"
    assert (tmp_path / "00_bootstrap_0002.ir").exists()


def test_a_folder_that_cannot_be_leaves_the_run_alive_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plain = train("aot_eager")
    torch._dynamo.reset()
    context = msctx.context(save_graphs=3, save_graphs_path=str(tmp_path / "file" / "graphs"))
    with pytest.warns(MsctxWarning, match=r"save_graphs: cannot write to .*file.* \(.*\): no graph is saved") as found, context:
        assert torch.equal(train("aot_eager"), plain)
    assert len(found) == 1


def test_the_plan_shows_a_folder_that_cannot_be_and_strict_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = {"save_graphs": True, "save_graphs_path": str(tmp_path / "file" / "graphs")}
    with pytest.warns(MsctxWarning), msctx.context(**options) as ctx:
        inside = ctx.plan
    for plan in (inside, ctx.plan):
        assert {(row.option, row.status, "no graph is saved" in row.reason) for row in plan.rows} == {
            (option, "approximated", True) for option in options
        }
    with pytest.raises(msctx.StrictError, match="cannot write to"), msctx.context(**options, strict=True):
        raise AssertionError("entered")


def test_a_folder_that_goes_comes_again(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path / "graphs")):
        os.rmdir(tmp_path / "graphs")
        train("aot_eager")
    assert stems(tmp_path / "graphs") == FIRST


def test_a_graph_that_cannot_be_written_leaves_the_run_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch makes next year."""
    monkeypatch.setattr("msctx.graph.files.ir_text", lambda *args, **kwargs: 1 / 0)
    told = pytest.warns(MsctxWarning, match=r"save_graphs: a graph cannot be written \(ZeroDivisionError")
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)), told:
        train("aot_eager")


def test_a_torch_without_one_of_the_functions_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor.debug import DebugContext

    monkeypatch.delattr(DebugContext, "__getattr__")
    context = msctx.context(save_graphs=1, save_graphs_path=str(tmp_path))
    with pytest.warns(MsctxWarning, match=r"no torch\._inductor\.debug\.DebugContext\.__getattr__"):
        context.__enter__()
    with context:
        assert stages.read() == {"level": 1, "path": str(tmp_path)}
        train("aot_eager")
    context.__exit__(None, None, None)
    assert stems(tmp_path) == FIRST


def test_a_folder_stays_where_it_is_under_another_level_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its path is the same text: the program has changed its directory meanwhile."""
    monkeypatch.chdir(tmp_path)
    outer = Writer(GraphFiles(1, "graphs"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert Writer(GraphFiles(3, "graphs"), outer).folder == tmp_path / "graphs"
    assert Writer(GraphFiles(3, "more"), outer).folder == tmp_path / "other" / "more"
