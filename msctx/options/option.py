"""One option: the single place for its name, type, default, devices and help; and a setting of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from msctx.options.kinds import Choice, Kind

if TYPE_CHECKING:
    from msctx.options.files_named_by_options import Format

DEVICES = ("cpu", "cuda", "ascend")
GROUPS = {"cpu_config": "cpu", "gpu_config": "cuda", "ascend_config": "ascend"}
"""Groups of set_context that mean one device alone (``cpu_config`` is ours)."""
_DEVICE_NAMES = {"device_context.gpu": "cuda", "device_context.ascend": "ascend"}
FLAGS_SOURCE = "mindspore: graph_kernel_flags.cc"
"""The source of flags that no document lists: they are rows of no catalogue."""
_NEWER = ("device_context", "runtime", "set_device", "set_deterministic", "set_recursion_limit")
"""MindSpore's newer vocabulary; in one layer it wins over set_context's."""


@lru_cache(4096)
def device_of(spelling: str) -> str | None:
    """The one device that a spelling means, or ``None`` for every device that has the option."""
    first, _, rest = spelling.partition(".")
    if first == "ge_options":
        return "ascend"
    return GROUPS.get(first) or _DEVICE_NAMES.get(f"{first}.{rest.partition('.')[0]}")


@lru_cache(4096)
def rank_of(spelling: str) -> int:
    """Which of two spellings of one option in one layer wins: the higher one.

    CANN's own words (``ge_options``) beat MindSpore's newer vocabulary, that beats a group, and a group the flat spelling.
    """
    first = spelling.partition(".")[0]
    if "ge_options." in spelling:
        return 3
    return 2 if first in _NEWER else 1 if first in GROUPS else 0


UNSET: Any = type("Unset", (), {"__repr__": lambda self: "unset", "__bool__": lambda self: False})()
"""The default of an option for which the source vocabulary names none."""


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One option, declared once; everything else about it is derived from this row."""

    name: str  # the flat name, or ``namespace.key`` where the flat name means something else
    kind: Kind  # what values it takes
    _: KW_ONLY
    help: str  # one paragraph for people: what it does, in our own words
    default: Any = UNSET  # the value that MindSpore (or CANN) has when nobody sets it; msctx never assigns it by itself
    defaults: Mapping[str, Any] = field(default_factory=dict)  # group → default, in a vocabulary that has another
    devices: tuple[str, ...] = DEVICES  # the devices on which the option has a meaning
    groups: tuple[str, ...] = ()  # the dictionaries in which it may also stand, e.g. ``("gpu_config", "cpu_config")``
    also: tuple[str, ...] = ()  # its names in MindSpore's newer vocabulary and later releases: ``"runtime.launch_blocking"`` …
    ge: str = ""  # its key among CANN's graph engine options, by which ``ge_options`` reaches it
    is_output: bool = False  # the value is a path that msctx writes; in a YAML file it is meant from that file's folder
    content: str = ""  # the format, in ``files_named_by_options.py``, of the file that the value names or the text that it is
    documented: tuple[str, ...] = ()  # where source documents define it, unless at its groups or its name
    replaced_by: str = ""  # for a deprecated option: what to use instead. Such an option is inert everywhere
    source: str = "mindspore.set_context"  # the document that defines it; ``"msctx"`` marks an option of our own
    example: Any = UNSET  # one value a user could write

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every dotted path under which the option may be set."""
        return (self.name, *(f"{group}.{self.name}" for group in self.groups), *self.also)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths under which source documents define the option; one of our own has none."""
        if self.source in ("msctx", FLAGS_SOURCE):
            return ()
        return self.documented or tuple(f"{g}.{self.name}" for g in self.groups if g != "cpu_config") or (self.name,)

    def default_at(self, spelling: str) -> Any:
        """The default in the vocabulary that a spelling belongs to."""
        return self.defaults.get(spelling.partition(".")[0], self.default)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of an option that has a closed set of its own."""
        return self.kind.choices if isinstance(self.kind, Choice) and self.kind.meanings else ()

    @property
    def format(self) -> Format | None:
        """How the file that the value names, or the text that it is, is read; loaded only when one is."""
        if not self.content:
            return None
        from msctx.options import files_named_by_options

        found: Format = getattr(files_named_by_options, self.content)
        return found

    @property
    def names_file(self) -> bool:
        """Whether the value is the path of a file that is read."""
        return self.format is not None and self.format.is_file

    @property
    def is_text(self) -> bool:
        """Whether a bare word of the environment or the command line is its value as it stands, ``5`` and ``true`` too."""
        return self.kind.is_text and not self.kind.null


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as somebody set it: under which spelling, to which (canonical) value, and where."""

    option: Option
    spelling: str
    value: Any
    origin: str
    content: Any = None  # the content of the file that the value names, as plain data
    via: str = ""  # the spelling of the setting whose file or text held this one

    @property
    def device(self) -> str | None:
        """The one device this spelling means, or ``None`` for every device that has the option."""
        return device_of(self.spelling)

    @property
    def place(self) -> str:
        """The file or the call that set it: its origin without line and column, and without the name of a variable."""
        return "environment" if self.origin.startswith("environment ") else re.sub(r":\d+:\d+$", "", self.origin)


GPU, ASCEND = "mindspore.set_context(gpu_config)", "mindspore.set_context(ascend_config)"
SESSION, ATC = "CANN TF adapter session options", "CANN ATC"
"""Documents that define options, as :attr:`Option.source` names them."""

gpu_option = partial(Option, groups=("gpu_config", "cpu_config"), devices=("cpu", "cuda"), source=GPU)
"""An option of gpu_config; the CPU has the same."""
ascend_option = partial(Option, groups=("ascend_config",), source=ASCEND)
"""An option of ascend_config alone."""
session_option = partial(Option, groups=("session",), source=SESSION)
"""An option of sessions alone."""
extension = partial(Option, source="msctx")
"""An option of our own."""
