"""What compilation, its caches and the observers shall do: values of switches, to which options come together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msctx.options.algorithm_policy import ConvPolicy


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes that inputs of compiled code may have."""

    gears: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...] = ()  # of input_shape and dynamic_dims, by name
    named: bool = True  # whether these are names of arguments; else inputs are taken in their order
    ranges: tuple[tuple[tuple[int, int], ...], ...] = ()  # of each input the least and greatest sizes; (-1, -1): any
    dynamic: bool | None = None  # code for any size (True), for each size alone (False), or as torch decides


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a model, from its first to its last operators: names of modules or operators. *inside*: whether it is compiled, or
    what lies outside."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    inside: bool = True


@dataclass(frozen=True, slots=True)
class Compilation:
    """How msctx compiles modules and functions."""

    whole: bool = False  # what cannot be captured is an error (STRICT); else it runs eagerly (LAX)
    fused: bool | None = None  # by inductor, or one library kernel per node; None: as torch.compile does unasked
    ready_made: bool = False  # one library kernel per node, but on an NPU, whose compiler of graphs has kernels of both sorts
    only: bool = False  # nothing runs; what is compiled fills the caches
    keeps: float | None = None  # torch._functorch.config.activation_memory_budget: from all activations (1) to inputs alone (0)
    shapes: Shapes = Shapes()  # which shapes inputs may have
    region: Region | None = None  # which part is compiled; None: all
    config: tuple[tuple[str, Any], ...] = ()  # entries of torch._inductor.config, for this code alone
    flags: tuple[tuple[str, Any], ...] = ()  # of graph_kernel_flags, with their values
    fusion_switches: tuple[tuple[str, str, str], ...] = ()  # of CANN's fusion passes: group, pass, ``"on"`` or ``"off"``
    scope_passes: tuple[str, ...] = ()  # which passes replace patterns that are off unless named
    frozen: bool = False  # weights become constants where no gradients are computed
    weights: bool = False  # convolutions read them where they are, since an algorithm is requested
    epilogues: bool = False  # convolutions of graphs without gradients take what follows them into their call
    races: ConvPolicy | None = None  # under which PyTorch's own ways of graphs without gradients are measured, too


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The folder of torch's caches of compiled code."""

    path: str = ""  # "": where the option that requests it has it by default
    kernels: bool = False  # laid out as that of op_compiler_cache_mode, ``kernel_cache`` in *path*; else ``rank_<number>``
    off: bool = False  # nothing is kept
    renew: bool = False  # what is kept there is thrown away first
    megabytes: int | None = None  # the oldest beyond that is thrown away; -1: there is no limit; None: as is found there
    percent: int = 50  # of *megabytes* that stays then


# --- the fusion passes of CANN that options name, and what stands for each in torch -------------------------------------

ALL = "ALL"
GRAPH, BUFFER = "GraphFusion", "UBFusion"

TWINS: dict[str, tuple[str, ...]] = {
    "ConvToFullyConnectionFusionPass": ("conv_1x1_as_mm",),
    "SoftmaxFusionPass": ("pattern.mul_softmax_pattern", "pattern.div_softmax_pattern"),
    "SplitConvConcatFusionPass": ("pattern.splitwithsizes_cat_replace", "pattern.cat_splitwithsizes_replace"),
    "MatMulBiasAddFusionPass": ("pattern.addmm",),
    "ZConcatv2dFusionPass": ("pattern.cat_slice_cat",),
    "ZConcatExt2FusionPass": ("pattern.cat_slice_cat",),
}
"""Pass → inductor's setting, or its patterns, that do the same."""
WITHOUT_A_TWIN = {
    "RequantFusionPass": "inductor merges quantisations in graphs that PyTorch's own export has quantised, and has no switch for it",
    "NotRequantFusionPass": "inductor keeps quantisations apart unless it merges them",
    "ConvConcatFusionPass": "inductor always writes inputs of a concatenation to where they end up",
    "PoolingFusionPass": "inductor has no pass about pooling",
    "TfMergeSubFusionPass": "subtractions in a row are one fused kernel anyway",
    "TbePool2dQuantFusionPass": "inductor fuses by loops: UBFusion has the one switch ALL here",
}
"""Pass → why nothing stands for it."""


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
class Kernels:
    """The sources that inductor generates, in files."""

    path: str = ""  # the folder for kernel_meta; "": CANN's own, or the working directory
    locations: bool = False  # also which lines of Python each comes from


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """The graphs that torch.compile goes through, in files. *level*: as save_graphs; *path*: the folder."""

    level: int
    path: str
