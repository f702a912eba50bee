"""The twelve traps of torch that msctx exists to avoid: each test shows first that torch still has it, then what msctx does."""

import os
import warnings

import pytest
import torch
from context_helpers import in_thread
from torch import _C

import msctx
from msctx.context import ledger
from msctx.errors import MsctxWarning, OptionError, StrictError
from msctx.switches import SWITCHES
from msctx.torch_config_overrides import is_threads_own

pytestmark = pytest.mark.usefixtures("torch_as_found")


def node(backend: str, op: str) -> str:
    return _C._get_fp32_precision_getter(backend, op)


def old_getters_answer() -> bool:
    with torch.backends.cudnn.flags(enabled=True):
        return isinstance(torch.backends.cudnn.allow_tf32, bool)


def test_trap_01_cudnn_flags_disables_cudnn(held):
    torch.backends.cudnn.enabled = True
    with torch.backends.cudnn.flags(deterministic=True):
        assert not torch.backends.cudnn.enabled, "torch fixed it: flags() leaves cuDNN on"

    plan = msctx.explain({"deterministic": "ON"}, device="cuda")
    assert plan.assignments["torch.cudnn.deterministic"] is True
    assert "torch.cudnn.enabled" not in plan.assignments
    with held({"torch.cudnn.deterministic": True, "torch.cudnn.benchmark": False}):
        assert torch.backends.cudnn.enabled
        assert torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.enabled


def test_trap_02_mkldnn_precision_writes_the_generic_node(held, exact_state):
    before = exact_state()
    assert node("generic", "all") == "none"
    torch.backends.mkldnn.fp32_precision = "bf16"
    assert node("generic", "all") == "bf16", "torch fixed it: the setter of mkldnn writes mkldnn's node"
    _C._set_fp32_precision_setter("generic", "all", "none")

    with held({"torch.cuda.matmul.allow_tf32": True, "torch.cudnn.allow_tf32": False}):
        for backend in ("generic", "cuda", "mkldnn"):
            assert node(backend, "all") == "none", "a switch for one kind of operator wrote the node of all"
        assert node("cuda", "matmul") == "tf32"
        assert "tf32" not in (node("cuda", "conv"), node("cuda", "rnn"))
        assert node("mkldnn", "matmul") == before["torch.fp32_precision.mkldnn.matmul"]
    assert exact_state() == before


def test_trap_03_generic_ieee_leaves_cudnn_at_tf32(held):
    torch.backends.cudnn.allow_tf32 = True  # what cudnn.flags() also does on its way out
    with torch.backends.flags(fp32_precision="ieee"):
        assert node("cuda", "conv") == node("cuda", "rnn") == "tf32", "torch fixed it: ieee reaches cuDNN's operators"
        assert msctx.state()["torch.cudnn.allow_tf32"] is True, "the state must show what cuDNN really does"

        with held({"torch.cudnn.allow_tf32": False}):
            assert "tf32" not in (node("cuda", "conv"), node("cuda", "rnn"))
            assert msctx.state()["torch.cudnn.allow_tf32"] is False
        assert node("cuda", "conv") == node("cuda", "rnn") == "tf32"


def test_trap_04_a_node_alone_makes_other_peoples_code_raise(held):
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        old_getters_answer()
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert old_getters_answer()

    for allowed in (False, True):
        with held({"torch.cudnn.allow_tf32": allowed, "torch.cuda.matmul.allow_tf32": allowed}):
            assert old_getters_answer(), "inside the scope"
            assert torch.backends.cudnn.allow_tf32 is allowed
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert old_getters_answer(), "after the scope"


def test_trap_05_matmul_precision_says_high_for_an_ieee_node(held):
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert torch.get_float32_matmul_precision() == "high", "torch fixed it: the old getter follows the node"
    assert msctx.state()["torch.cuda.matmul.allow_tf32"] is False, "the state must show what the device really does"

    with held({"torch.cuda.matmul.allow_tf32": True}):
        assert (node("cuda", "matmul"), torch.get_float32_matmul_precision()) == ("tf32", "high")
        with held({"torch.cuda.matmul.allow_tf32": False}):
            assert node("cuda", "matmul") == "ieee"
            assert not torch.backends.cuda.matmul.allow_tf32
        assert (node("cuda", "matmul"), torch.get_float32_matmul_precision()) == ("tf32", "high")
    assert (node("cuda", "matmul"), torch.get_float32_matmul_precision()) == ("ieee", "high")


@pytest.mark.filterwarnings("ignore:hi is not one of")
def test_trap_06_a_wrong_precision_only_warns(run_forked):
    code = "import torch; torch.set_float32_matmul_precision('hi'); print(torch.get_float32_matmul_precision())"
    done = run_forked(code)  # it warns once a process
    assert (done.returncode, done.stdout) == (0, "highest\n"), "torch fixed it: the value is an error"
    assert "has no effect" in done.stderr

    with pytest.raises(OptionError, match="nothing was changed"):
        msctx.context(matmul_allow_tf32="hi")


def test_trap_07_inductors_flag_is_the_threads_own():
    from torch._inductor import config

    def there() -> bool:
        return config.deterministic

    torch.use_deterministic_algorithms(True)
    assert config.deterministic
    if is_threads_own(config, "deterministic"):  # not in torch 2.11
        assert not in_thread(there), "torch fixed it: a new thread sees inductor's flag"
    assert in_thread(torch.are_deterministic_algorithms_enabled)
    torch.use_deterministic_algorithms(False)

    with msctx.context(deterministic="ON"):
        assert config.deterministic
        assert in_thread(there)
    assert not config.deterministic
    assert not in_thread(there)


def test_trap_08_deterministic_off_overwrites_inductors_flag(exact_state):
    from torch._inductor import config

    config.deterministic = True
    torch.use_deterministic_algorithms(False)
    assert not config.deterministic, "torch fixed it: the user's own setting survives"

    config.deterministic = True
    before = exact_state()
    for value in ("OFF", "ON"):
        with msctx.context(deterministic=value):
            assert config.deterministic is (value == "ON")
        assert config.deterministic
        assert exact_state() == before
    with msctx.context(runtime_num_threads=1):
        assert config.deterministic, "an option that nobody set was written"


def weight_gradient(threads: int | None = None) -> torch.Tensor:
    if threads is not None:
        torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(8, 32, 28, 28, generator=generator)
    weight = torch.randn(32, 32, 3, 3, generator=generator).requires_grad_()
    torch.nn.functional.conv2d(image, weight, padding=1).square().sum().backward()
    assert weight.grad is not None
    return weight.grad


def test_trap_09_deterministic_holds_for_one_number_of_threads():
    for threads in (1, 2):
        grads = []
        for _ in range(2):
            with msctx.context(deterministic="ON", runtime_num_threads=threads):
                assert torch.get_num_threads() == threads
                grads.append(weight_gradient())
        assert torch.equal(*grads), f"two runs with {threads} threads differ"

    torch.use_deterministic_algorithms(True)
    if torch.equal(weight_gradient(1), weight_gradient(2)):
        pytest.skip("on this CPU a convolution's weight gradient is the same with one thread and with two")


def test_trap_10_determinism_fills_new_memory():
    torch.use_deterministic_algorithms(True)
    assert torch.empty(64).isnan().all(), "torch fixed it: uninitialised memory is not filled"
    torch.use_deterministic_algorithms(False)

    with msctx.context(deterministic="ON"):  # part of the recipe, and said so
        assert torch.empty(64).isnan().all()
        assert torch.utils.deterministic.fill_uninitialized_memory
    with msctx.context(deterministic="ON", fill_uninitialized_memory=False):
        assert not torch.utils.deterministic.fill_uninitialized_memory
        recycled = torch.zeros(64)
        address = recycled.data_ptr()
        del recycled
        if (fresh := torch.empty(64)).data_ptr() == address:
            assert not fresh.isnan().any()
    assert torch.utils.deterministic.fill_uninitialized_memory

    _C._set_deterministic_fill_uninitialized_memory(False)
    with msctx.context(deterministic="ON"):
        assert torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.utils.deterministic.fill_uninitialized_memory, "put back to torch's default instead of what was found"


def test_trap_11_cublas_reads_its_variable_once(held, monkeypatch):
    variable = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(variable, "x")
    monkeypatch.delenv(variable)  # so that what the switch leaves behind is taken away after the test
    torch.use_deterministic_algorithms(True)
    assert variable not in os.environ, "torch fixed it: it sets the variable itself"
    torch.use_deterministic_algorithms(False)

    plan = msctx.explain({"deterministic": "ON"}, device="cuda")
    name = f"env.{variable}"
    assert plan.assignments[name] == ":4096:8"
    assert SWITCHES[name].lasts == "it is read only before the first use of cuBLAS"
    only = {name: plan.assignments[name]}

    with monkeypatch.context() as late:
        late.setattr(torch.cuda, "is_initialized", lambda: True)
        with held(only) as hold:
            assert f"os.environ['{variable}'] = ':4096:8'" in hold.late[name], "the line to add is not told"
            assert variable not in os.environ

    with pytest.raises(StrictError, match="cannot be restored"):
        ledger.apply(only, ledger.Hold("trap 11"), strict=True)
    assert variable not in os.environ
    with pytest.warns(MsctxWarning, match="stays after this with-block"), held(only):
        pass
    assert os.environ[variable] == ":4096:8"


def test_trap_12_a_saved_flag_is_not_the_whole_state(held):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        saved = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        torch.use_deterministic_algorithms(saved)
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "torch fixed it: warn_only survives"

    torch.use_deterministic_algorithms(True, warn_only=True)
    before = msctx.state()
    assert before["torch.deterministic"] == "warn_only"
    assert before["torch.cudnn.deterministic"] is True
    with held({"torch.cudnn.deterministic": False, "torch.cudnn.benchmark": True}), msctx.context(deterministic="OFF"):
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.deterministic
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert msctx.state() == before
