"""The fusion passes of CANN that options name, and what stands for each in torch."""

from __future__ import annotations

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
SCOPE_PASSES = ("ScopeLayerNormPass", "ScopeClipBoxesPass")
