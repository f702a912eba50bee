"""enable_data_pre_proc and input_fusion_size: how batches reach the device; a PyTorch program does that itself."""

from __future__ import annotations

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, effect, honoured, refused
from msctx.effects.graph_engine import GRAPHS, with_graphs

OWN_LOADER = (
    "the program's data loader fetches the batches: a thread of msctx's beside it would run the dataset's code at other times, which "
    "draws other random numbers and changes what is trained. Prefetch with DataLoader(num_workers=…, prefetch_factor=…, "
    "pin_memory=True), and copy with tensor.to(device, non_blocking=True)"
)
OWN_COPIES = (
    "the program copies its inputs itself, each tensor where its code says so. Put small inputs into one tensor in the collate_fn, "
    "and copy that from pinned memory: DataLoader(pin_memory=True), tensor.to(device, non_blocking=True)"
)


@effect("enable_data_pre_proc")
def enable_data_pre_proc(want: Want) -> Outcome:
    return refused(OWN_LOADER) if want.value else NOTHING_ASKED


@effect("input_fusion_size")
def input_fusion_size(want: Want) -> Outcome:
    if want.device == "ascend":
        return honoured(with_graphs(want), GRAPHS)
    return refused(OWN_COPIES) if want.value else honoured(reason="PyTorch copies each tensor by itself")
