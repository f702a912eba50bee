"""``ms.jit``: compiled in both modes, with MindSpore's words."""

import pytest
import torch
from graph_programs import graphs
from torch import nn
from torch._inductor import metrics

import msctx
import msctx.mindspore as ms


@pytest.fixture(autouse=True)
def _nothing_stays(afresh):
    yield
    msctx.reset_context()


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_functions_are_compiled_in_both_modes(mode):
    @ms.jit(jit_level="O0")
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    theirs = torch.compile(torch.sin, backend="eager")
    ms.set_context(mode=mode)
    torch.testing.assert_close(function(torch.ones(3)), torch.full((3,), 2.0))
    assert graphs() == 1
    theirs(torch.ones(3))
    assert graphs() == (2 if mode == ms.GRAPH_MODE else 1), "what is no function of ms.jit is eager in PYNATIVE_MODE"


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_a_module_is_compiled_with_its_hooks(mode):
    net = nn.Linear(2, 2)
    net.register_forward_hook(lambda module, args, output: output + 1)
    ms.set_context(mode=mode)
    x = torch.ones(1, 2, requires_grad=True)
    found = ms.jit(net, jit_level="O0", fullgraph=True)(x)
    assert graphs() == 1
    found.sum().backward()
    torch.testing.assert_close(found, net(x))
    assert net.weight.grad is not None
    for _ in range(torch._dynamo.config.recompile_limit + 1):
        ms.jit(nn.Linear(2, 2), jit_level="O0", fullgraph=True)(x)


def test_dynamic_and_fullgraph():
    @ms.jit(jit_level="O0", dynamic=1)
    def any_size(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    any_size(torch.ones(3, 4))
    any_size(torch.ones(5, 6))
    assert graphs() == 1

    @ms.jit(jit_level="O0", fullgraph=True)
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(msctx.GraphError, match="branching"):
        asks(torch.ones(3))


def test_wrong_words_raise_as_mindspore_does():
    for options, error in (
        ({"jit_level": "O3"}, ValueError),
        ({"dynamic": 2}, ValueError),
        ({"fullgraph": 1}, TypeError),
        ({"jitlevel": "O0"}, TypeError),
        ({"jit_config": {"jit_level": "O3"}}, ValueError),
    ):
        with pytest.raises(error):
            ms.jit(lambda x: x, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ms.jit(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("beside", [{"capture_mode": "bytecode"}, {"ge_options": {}}, {"jit_config": {"infer_boost": "on"}}])
def test_what_is_for_mindspores_compiler_is_ignored_with_one_warning(beside):
    with pytest.warns(msctx.MsctxWarning, match=r"^ms\.jit\([\w.]+\): only MindSpore's compiler has this setting") as issued:
        function = ms.jit(**beside)(lambda x: x + 1)
    assert len(issued) == 1
    assert function(torch.ones(1)) == 2


@pytest.mark.parametrize(("name", "value"), [("fullgraph", True), ("dynamic", 1)])
def test_what_is_read_only_as_an_argument_is_ignored_in_jit_config(name, value):
    with pytest.warns(msctx.MsctxWarning, match=rf"^ms\.jit\(jit_config\.{name}\): it is read only as an argument"):
        ms.jit(lambda x: x, jit_config={name: value})


@pytest.mark.filterwarnings("error::msctx.MsctxWarning")
@pytest.mark.parametrize(("given", "level"), [({"jit_level": "O0"}, ""), ({"jit_level": "O1"}, "O0")])
def test_the_level_in_jit_config_acts_unless_jit_has_its_own(given, level):
    metrics.reset()
    ms.set_context(enable_graph_kernel=True)
    assert ms.jit(lambda x: torch.relu(x) + 1, jit_level=level, jit_config={**given})(torch.ones(1)) == 2
    assert (graphs(), metrics.generated_kernel_count) == (1, 0)
