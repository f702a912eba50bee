"""What torch's old precision API answers, and the state of both APIs: read, and put back."""

from typing import Any

from torch import _C


def old_getters() -> dict[str, Any]:
    """What code that knows only the old API gets to see."""
    found: dict[str, Any] = {}
    for getter in (_C._get_float32_matmul_precision, _C._get_cublas_allow_tf32, _C._get_cudnn_allow_tf32):
        try:
            found[getter.__name__] = getter()
        except RuntimeError:
            found[getter.__name__] = "raises"
    return found


NODES = [("generic", "all"), *((b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn"))]


def precision_nodes() -> dict[str, str]:
    """Each node's own value; a getter shows what a node inherits, so the parents step aside one after the other."""
    get, put = _C._get_fp32_precision_getter, _C._set_fp32_precision_setter
    own = {"generic.all": get("generic", "all")}
    put("generic", "all", "none")
    for backend in ("cuda", "mkldnn"):
        own[f"{backend}.all"] = get(backend, "all")
        put(backend, "all", "none")
        own |= {f"{backend}.{op}": get(backend, op) for op in ("matmul", "conv", "rnn")}
        put(backend, "all", own[f"{backend}.all"])
    put("generic", "all", own["generic.all"])
    return own


def old_flags() -> tuple[str | None, bool | None]:
    """The old precision API's own flags; ``None`` where both APIs were mixed and the getter raises."""
    found: list[Any] = []
    for getter in (_C._get_float32_matmul_precision, _C._get_cudnn_allow_tf32):
        try:
            found.append(getter())
        except RuntimeError:
            found.append(None)
    return found[0], found[1]


def put_precision_back(flags: tuple[str | None, bool | None], nodes: dict[str, str]) -> None:
    for setter, value in zip((_C._set_float32_matmul_precision, _C._set_cudnn_allow_tf32), flags, strict=True):
        if value is not None:
            setter(value)
    for backend, op in NODES:
        _C._set_fp32_precision_setter(backend, op, nodes[f"{backend}.{op}"])
