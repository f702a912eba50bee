"""What a precision policy means for what is computed again, or backwards: checkpoints, and autograd functions of one's own."""

import gc
import warnings
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from recorded import each_mode
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.options.precision_policy import MODES

pytestmark = pytest.mark.usefixtures("one_thread")
BF16, FP32 = torch.bfloat16, torch.float32


class PartsWithoutGraph(torch.nn.Module):
    """What a checkpoint computes again without a graph inside, and in a module that a rule names."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            weights = torch.softmax(self.body(x) @ x.t(), -1)
        with torch.autocast("cpu", enabled=False):
            plain = self.body(x.float())
        return self.head(weights.to(x.dtype) @ x) + plain


@pytest.fixture
def by_name(tmp_path):
    rules = tmp_path / "rules.ini"
    rules.write_text("[ByNodeName]\nhead=high_precision\n")
    return str(rules)


@pytest.mark.full
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["inside", "after", "in another"])
@pytest.mark.parametrize("mode", [None, *each_mode.args[1]])
def test_a_checkpoint_carries_its_policy(mode, where, reentrant, by_name):
    """Also to a backward pass that begins after the block, or in a block with another policy."""
    torch.manual_seed(0)
    model = PartsWithoutGraph()
    x, gradients = torch.randn(3, 4), []
    options = {"precision_mode": mode} if mode else {"op_precision_mode": by_name}
    if mode == "allow_mix_precision_bf16":
        options["op_precision_mode"] = by_name
    ctx, found = msctx.context(**options), (torch.set_autocast_enabled, torch.set_autocast_cache_enabled)
    ctx.watch(model)
    for run in (model, lambda t: checkpoint(model, t, use_reentrant=reentrant)):
        model.zero_grad()
        t = x.clone().requires_grad_()
        with ctx:
            y = run(t)
            if where == "inside":
                y.float().square().sum().backward()
        if where == "after":
            torch.autograd.backward(y, 2 * y.detach())
        elif where == "in another":
            with msctx.context(precision_mode="force_fp16" if mode == "force_fp32" else "force_fp32"):
                torch.autograd.backward(y, 2 * y.detach())
        del y
        gradients.append([t.grad, *(p.grad for p in model.parameters())])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)
    gc.collect()
    assert (torch.set_autocast_enabled, torch.set_autocast_cache_enabled) == found


class Product(torch.autograd.Function):
    seen: list[torch.dtype] = []

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        found = gradient @ b.t()
        Product.seen.append(found.dtype)
        return found, a.t() @ gradient


class AmpProduct(torch.autograd.Function):
    forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="cpu"))


@pytest.mark.parametrize("mode", MODES)
def test_the_backward_pass_of_ones_own_function_is_governed(mode):
    for function, autocast in product((Product, AmpProduct), (False, True)):
        a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        with msctx.context(precision_mode=mode), torch.autocast("cpu", enabled=True) if autocast else nullcontext():
            y = function.apply(a, b)
            y.float().sum().backward()
            expected = (torch.ones_like(y) @ b.detach().t()).dtype
        assert Product.seen.pop() == expected, (function, autocast)
        torch.testing.assert_close(a.grad, torch.ones(4, 4) @ b.detach().t(), rtol=0.1, atol=0.1)
        assert a.grad.dtype == FP32


def stepped(mode="allow_mix_precision_fp16", scaler=None, contexts=1, where="inside"):
    """Train a layer for two steps in each context; *scaler*: whether there is one, and it is on."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=bool(scaler)) if scaler is not None else None

    def backward():
        loss = model(torch.ones(2, 4)).float().sum()
        (scaler.scale(loss) if scaler else loss).backward()
        return loss

    def step():
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step(backward if where == "closure" else None)

    for _ in range(contexts):
        with msctx.context(precision_mode=mode):
            for _ in range(2):
                if where != "closure":
                    backward()
                step()


STEPS = {
    "a scaler": ({"scaler": True}, 0),
    "none, once in each context": ({"contexts": 2}, 2),
    "a scaler that is off": ({"scaler": False}, 1),
    "a closure": ({"where": "closure"}, 1),
    "bfloat16": ({"mode": "allow_mix_precision_bf16"}, 0),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("how", "count"), STEPS.values(), ids=STEPS)
def test_each_step_with_unscaled_gradients_from_float16_is_reported(how, count):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        stepped(**how)
        stepped(scaler=True)
        stepped()
    assert ["gradients from float16 that are not scaled" in str(w.message) for w in found] == [True] * (count + 1)


RULES = {
    "by type": {"precision_mode": "allow_mix_precision_bf16", "op_precision_mode": "[ByOpType]\nMatMul=high_precision\n"},
    "by name": {"precision_mode": "allow_mix_precision_bf16", "op_precision_mode": "[ByNodeName]\nhead=high_precision\n"},
    "dtypes": {"customize_dtypes": "head::InputDtype:bfloat16,bfloat16,OutputDtype:float32\n"},
    "all": {"precision_mode": "allow_mix_precision_bf16", "op_select_implmode": "high_precision_for_all"},
    "none": {"precision_mode": "allow_mix_precision_bf16"},
}


@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_functional_gradients_are_those_of_a_backward_pass(options, tmp_path):
    """Each level of torch.func comes to the policy with the same call again: it is computed in its dtypes once."""
    for name in options.keys() & {"op_precision_mode", "customize_dtypes"}:
        (tmp_path / name).write_text(options[name])
        options = {**options, name: str(tmp_path / name)}
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("head", torch.nn.Linear(4, 4))
    x, parameters = torch.randn(3, 4), dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).float().square().sum()

    with msctx.context(**options) as ctx:
        ctx.watch(model)
        loss(parameters, x).backward()
        plain = {name: p.grad for name, p in parameters.items()}
        found = [torch.func.grad(loss)(parameters, x), torch.func.vjp(loss, parameters, x)[1](torch.tensor(1.0))[0]]
        products = [row.calls for row in ctx.precisions() if row.operator in ("linear", "addmm") and not row.backward]
        assert sum(products) == 3
        found.append(torch.func.jacrev(loss)(parameters, x))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x.unsqueeze(1))
        second = torch.func.hessian(loss)(parameters, x)["head.weight"]["head.weight"]
    for gradients in found:
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, plain[name])
    torch.testing.assert_close(each["head.weight"].sum(0), plain["head.weight"], rtol=0.05, atol=0.1)
    exact = 2 * torch.einsum("ij,bk,bl->ikjl", torch.eye(4), x, x)
    torch.testing.assert_close(second, exact, rtol=0.05, atol=0.1)


def test_a_mode_that_is_entered_in_a_backward_pass_acts_there():
    """In a hook of a gradient, and in a checkpoint that is computed again."""
    found, w = [], torch.randn(8, 8)

    def product(x):
        with msctx.context(precision_mode="allow_mix_precision_bf16"):
            found.append((y := x @ w).dtype)
        return y.float()

    h = 2 * torch.ones(4, 8, requires_grad=True)
    h.register_hook(lambda g: found.append(product(g).dtype))
    h.sin().sum().backward()
    for reentrant in (True, False):
        checkpoint(product, torch.ones(4, 8, requires_grad=True), use_reentrant=reentrant).sum().backward()
    assert found == [torch.bfloat16, torch.float32, *3 * [torch.bfloat16]]  # the last one stops at the matmul, or raises
