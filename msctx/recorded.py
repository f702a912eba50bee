"""What of the environment and of the command line may be written down: other people read records, and secrets stand in both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msctx.options import layers
from msctx.options.layers import PREFIX, RESERVED, is_option

FAMILIES = (
    *("ACL", "ASCEND", "ATEN", "CUBLAS", "CUBLASLT", "CUDA", "CUDNN", "DISABLE", "DNNL", "GOMP", "HCCL", "KMP", "MKL", "NCCL"),
    *("NVIDIA", "OMP", "ONEDNN", "PYTORCH", "TE", "TORCH", "TORCHDYNAMO", "TORCHINDUCTOR"),
)
"""Prefixes of the environment variables that change what torch computes or how."""
UNRECORDED = "(set; its value is not recorded)"
"""Of a variable whose value may be a secret: that it is there may matter."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH_|CERT|LICEN[CS]E|://", re.IGNORECASE)
"""What a name, or a value, has that may be one."""

_ARGUMENT = re.compile(r"^((?:--sweep=)?(?:experiment|(?:experiment\.)?args(?:\.[^=]*)?)=).*", re.DOTALL)
"""An argument of an entry as a word of the command line, or all of them (``args={…}``)."""
_FAMILY = re.compile(rf"({'|'.join([*FAMILIES, PREFIX[:-1]])})_")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what bears on the numerics; values only where neither they nor their names look like a secret."""
    names = [name for name in sorted(environment) if name == "PYTHONHASHSEED" or _FAMILY.match(name)]
    found = {name: environment.get(name) for name in names}  # another thread may have taken one away since
    return {name: text if _is_known(name, text) else UNRECORDED for name, text in found.items() if text is not None}


def _is_known(name: str, text: str) -> bool:
    if name.startswith(PREFIX):
        return is_option(name) or (name in RESERVED and name != layers.PLAN)  # long; a run has a plan.json
    return not _SECRET.search(name) and not _SECRET.search(text)


def command_line(words: Sequence[str]) -> list[str]:
    """A command line without what may be secret in it: the arguments of an entry (``args.x=``), and all values of other programs."""
    program, *rest = words or [""]
    if _is_ours(program):
        return [program, *(_ARGUMENT.sub(r"\1…", word) for word in rest)]
    return [program, *(re.sub(r"=.*", "=…", word, flags=re.DOTALL) if word.startswith("-") else "…" for word in rest)]


def _is_ours(program: str) -> bool:
    path = Path(program)
    return path.name in ("msctx", "msctx.exe") or path == Path(__file__).parent / "__main__.py"
