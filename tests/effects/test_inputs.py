"""enable_data_pre_proc and input_fusion_size: what the program does itself is refused, with what to do instead."""

from plans import check

from msctx.options import DEVICES


def test_fetching_batches_ahead_is_the_data_loaders_own_matter() -> None:
    for device in DEVICES:
        check(
            [
                (device, {"enable_data_pre_proc": True}, {"enable_data_pre_proc": ("refused", {}, "prefetch_factor")}),
                (device, {"enable_data_pre_proc": False}, {"enable_data_pre_proc": ("honoured", {}, "nothing is asked for")}),
            ]
        )


def test_inputs_are_copied_by_the_program() -> None:
    key = "ge.exec.input_fusion_size"
    packed = {"torch.npu.graph_options": {key: "262144"}, "torch.dynamo.apart": (f"{key}=262144",)}
    check(
        [
            ("cuda", {"input_fusion_size": 262144}, {"input_fusion_size": ("refused", {}, "collate_fn")}),
            ("cuda", {"input_fusion_size": 0}, {"input_fusion_size": ("honoured", {}, "each tensor by itself")}),
            ("cpu", {"input_fusion_size": 262144}, {"input_fusion_size": ("inert", {}, "no meaning on cpu")}),
            ("ascend", {"input_fusion_size": 262144}, {"input_fusion_size": ("honoured", packed, "torchair")}),
        ]
    )
