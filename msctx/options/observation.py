"""What the observers of a run shall do: each is one value of one switch, to which all options about it come together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dump:
    """The data of operators, in files."""

    path: str  # the folder
    steps: str = ""  # which, as dump_step writes them; "": every step
    mode: str = "output"  # input, output or all
    data: str = "tensor"  # tensor, stats or full, which is both
    layers: tuple[str, ...] = ()  # names of modules or operators, types of operators, ``name-regex(…)``; (): all operators
    layout: str = "mindspore"  # of the files, mindspore or msprobe
    net: str = "Net"  # the name of a folder in MindSpore's layout
    columns: tuple[str, ...] = ()  # of statistics in that layout, as statistic_category names them; (): all but md5
    first_step: int = 0  # the number of the first step
    ranks: tuple[int, ...] = ()  # that write; (): all
    arguments: bool = False  # whether those that are no tensors are written, in MindSpore's layout
    marked: bool = False  # only what :func:`msctx.set_dump` has marked
    option: str = "session.enable_dump"  # that requests it

    @property
    def has_digests(self) -> bool:
        """Whether each tensor has one, for which it goes through a file."""
        return "md5" in self.columns


@dataclass(frozen=True, slots=True)
class Overflow:
    """Which operator first computes what is not finite from what is.

    *mode*: as dump_debug_mode; *most*: operators whose data are written, 0: as many as there is room for;
    *option*: that requests it.
    """

    path: str
    mode: str = "all"
    most: int = 0
    option: str = "enable_dump_debug"


@dataclass(frozen=True, slots=True)
class ErrorDump:
    """What goes into an operator that raises, in files.

    *level*: as enable_exception_dump; *path*: "": where CANN puts them; *option*: that requests it.
    """

    level: int
    path: str = ""
    option: str = "enable_exception_dump"


@dataclass(frozen=True, slots=True)
class Recorder:
    """The last operators, written at the end. *mode*: as env_config_path.rdr.mode."""

    path: str
    mode: int = 1


@dataclass(frozen=True, slots=True)
class Watchdog:
    """The seconds that one operator may run."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """The sources that inductor generates, in files."""

    path: str = ""  # the folder for kernel_meta; "": CANN's own, or the working directory
    locations: bool = False  # also which lines of Python each comes from


@dataclass(frozen=True, slots=True)
class DeterministicExcept:
    """What deterministic mode leaves out: names of operators and modules, or patterns of them."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """The graphs that torch.compile goes through, in files. *level*: as save_graphs; *path*: the folder."""

    level: int
    path: str
