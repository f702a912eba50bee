"""What is registered with torch and with Python, by their own registries: whoever is called when something runs."""

import ctypes
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import _C, nn
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer

_CPU = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
_CALLBACKS = {
    "operators of the process": _CPU._ZN2at18hasGlobalCallbacksEv,
    "operators of the thread": _CPU._ZN2at23hasThreadLocalCallbacksEv,
}
for _function in _CALLBACKS.values():
    _function.restype = ctypes.c_bool
_PASSES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS = (*_PASSES, "_state_dict_hooks", "_load_state_dict_pre_hooks")


def dispatched() -> dict[str, str]:
    """Each operator of torch's → the kernels that it has."""
    return {
        name: _C._dispatch_dump(name)
        for name in _C._dispatch_get_all_op_names()
        if name.startswith(("aten::", "prim", "quantized::"))
    }


def registered(net: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {name: function() for name, function in _CALLBACKS.items()}
    found["modes"] = _C._len_torch_function_stack(), _C._len_torch_dispatch_stack()
    found["hooks of all modules"] = {
        name: [*hooks] for name, hooks in vars(nn_module).items() if name.startswith("_global_") and name.endswith("hooks")
    }
    found["hooks of the model"] = [
        (path, name) for path, module in net.named_modules() for name in _HOOKS if getattr(module, name)
    ]
    found["hooks of parameters"] = [
        path for path, p in net.named_parameters() if p._backward_hooks or p._post_accumulate_grad_hooks
    ]
    found["calls"] = [nn.Module.__call__, nn.Module._call_impl, *(module.__dict__.get("forward") for module in net.modules())]
    found["hooks of optimizers"] = [*torch_optimizer._global_optimizer_pre_hooks, *torch_optimizer._global_optimizer_post_hooks]
    found["hooks of saved tensors"] = _C._autograd._top_saved_tensors_default_hooks(True)
    found["anomaly mode"] = torch.is_anomaly_enabled()
    found["Function"] = {**vars(torch.autograd.Function)}, torch.autograd.function.FunctionMeta.__call__
    found["compilers"] = _of_dynamo()
    found["threads"] = sorted(thread.name for thread in threading.enumerate())
    found["hooks of Python"] = sys.excepthook, threading.excepthook, sys.gettrace(), sys.getprofile()
    found["signals"] = _caught(), [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    return found


def _of_dynamo() -> Any:
    callback = sys.modules.get("torch._dynamo.callback")
    handler = callback.callback_handler if callback is not None else None
    return handler and ([*handler.start_callbacks], [*handler.end_callbacks])


def _caught() -> str:
    """The signals for which the process has handlers, also of C."""
    status = Path("/proc/self/status")
    return next((line for line in status.read_text().splitlines() if line.startswith("SigCgt")), "") if status.exists() else ""
