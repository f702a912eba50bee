"""Enters what MSCTX_PLAN carries as soon as a program imports torch.

msctx.pth stands beside the installed package, and each Python reads it at its start: where the variable is set, it leaves a finder
that goes, and calls :func:`found`, when torch is looked for. A Python that runs with ``-S``, or in whose environment msctx is not
installed, does not.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec

from msctx.context.process_wide import BASE
from msctx.errors import Diagnostic, MsctxError, OptionError
from msctx.import_hooks import when_imported
from msctx.options import layer_sources


def found() -> ModuleSpec | None:
    """What the finder of msctx.pth finds: torch, which is watched for from now on."""
    when_imported("torch", _enter)
    return importlib.util.find_spec("torch")


def torch_first() -> None:
    """For a program that imports msctx before torch, whose import enters the plan: that needs modules of ours which import torch."""
    if any(getattr(finder, "__name__", "") == "MsctxPlan" for finder in sys.meta_path):
        import torch as torch


def refuse_other_torch() -> None:
    """Raise where something else is imported as ``torch``."""
    torch = sys.modules.get("torch")
    if torch is not None and not hasattr(torch, "_C"):
        text = f"is {torch.__file__}, which is not PyTorch"
        raise OptionError([Diagnostic("torch", text, "import", suggestion="rename it, or start the program elsewhere")])


def _enter() -> None:
    try:
        refuse_other_torch()
        BASE.start()
        layer_sources.note_process(os.environ, str(os.getpid()))
    except MsctxError as error:  # a traceback would show torch's import, and a program may catch an ImportError
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
