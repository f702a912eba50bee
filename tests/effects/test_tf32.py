"""TF32 and HF32 through the devices' own flags, and nowhere else."""

from plans import check, planned

import msctx
from msctx.effects.algorithms import INDUCTOR
from msctx.options import DEVICES
from msctx.options.conv_policy import ConvPolicy

FLAGS = {
    "matmul_allow_tf32": ("cuda", "torch.cuda.matmul.allow_tf32", "honoured"),
    "conv_allow_tf32": ("cuda", "torch.cudnn.allow_tf32", "approximated"),
    "matmul_allow_hf32": ("ascend", "torch.npu.matmul.allow_hf32", "honoured"),
    "conv_allow_hf32": ("ascend", "torch.npu.conv.allow_hf32", "honoured"),
}
ELSEWHERE = {
    ("matmul_allow_tf32", "ascend"): "inert",
    ("conv_allow_tf32", "ascend"): "inert",
}
PRODUCTS = {"native.convolution.cpu": ConvPolicy(matmul_algo="normal", matmul_allow_tf32=True)} | INDUCTOR
GROUPS = {"cuda": "gpu_config", "ascend": "ascend_config"}


def in_graphs(digits: str) -> dict[str, object]:
    """What goes to CANN with each graph, of convolutions and of products."""
    return {
        "torch.npu.graph_options": {"ge.exec.allow_hf32": digits},
        "torch.dynamo.apart": (f"ge.exec.allow_hf32={digits}",),
    }


def one_digit(name: str, value: bool) -> dict[str, object]:
    return in_graphs(f"-{value:d}" if name == "matmul_allow_hf32" else f"{value:d}-") if "hf32" in name else {}


def test_the_devices_own_flag() -> None:
    for name, (device, switch, status) in FLAGS.items():
        for value in (True, False):
            for options in ({name: value}, {GROUPS[device]: {name: value}}):
                (row,) = msctx.explain(options, device=device).rows
                assert (row.status, row.assignments) == (status, {switch: value} | one_digit(name, value))
                assert row.reason or status != "approximated"
    found = planned(dict.fromkeys(FLAGS, True), on=DEVICES).assignments
    flags = {flag[1]: True for flag in FLAGS.values()}
    assert {name: value for name, value in found.items() if name not in PRODUCTS} == flags | in_graphs("11")


def test_a_chip_without_hf32_refuses_it() -> None:
    for name, switch in (
        ("matmul_allow_hf32", "torch.npu.matmul.allow_hf32"),
        ("conv_allow_hf32", "torch.npu.conv.allow_hf32"),
    ):
        check([("ascend", {name: True}, {name: ("refused", {}, "float16 alone, and no HF32")})], half_products=True)
        off, on = ({switch: value} | one_digit(name, value) for value in (False, True))
        check([("ascend", {name: False}, {name: ("honoured", off, "no HF32")})], half_products=True)
        check([("ascend", {name: True}, {name: ("honoured", on, "a digit for convolutions")})], half_products=False)


def test_elsewhere_nothing_is_switched_and_that_is_reported() -> None:
    for (name, device), status in ELSEWHERE.items():
        for value in (True, False):
            (row,) = msctx.explain({name: value}, device=device).rows
            assert (row.status, row.assignments, bool(row.reason)) == (status, {}, True)
    check(
        (device, {name: value}, {name: expected})
        for device in ("cpu", "cuda")
        for name in ("matmul_allow_hf32", "conv_allow_hf32")
        for value, expected in (
            (True, ("refused", {}, name.replace("hf32", "tf32"))),
            (False, ("honoured", {}, "no other device")),
        )
    )
    no_rounding = {False: ("honoured", {}, "do not round")}
    check(
        ("cpu", {option: value}, {option: expected})
        for option, by_value in (
            ("conv_allow_tf32", {True: ("inert", {}, "do not round")} | no_rounding),
            ("matmul_allow_tf32", {True: ("honoured", PRODUCTS, "matrix unit")} | no_rounding),
        )
        for value, expected in by_value.items()
    )


def test_products_take_tf32_on_a_cpu_that_has_it_and_where_nothing_forbids_it() -> None:
    wanted = {"matmul_allow_tf32": True}
    check([("cpu", wanted, {"matmul_allow_tf32": ("inert", {}, "no unit here, which alone")})], matrix_unit="no unit here")
    check([("cpu", wanted | {"allow_fp32_emulation": False}, {"matmul_allow_tf32": ("inert", {}, "overridden by")})])
    check(
        [
            (
                "cpu",
                wanted | {"matmul_algo": "strict"},
                {"matmul_allow_tf32": ("inert", {}, "no algorithm that is asked for can")},
            )
        ]
    )
    for algo in ("tf32", "bf16x3"):
        named = {"matmul_algo": algo, "matmul_allow_tf32": False}
        check([("cpu", named, {"matmul_algo": ("refused", {}, "it rounds, and matmul_allow_tf32=False")})])


def test_convolutions_that_no_algorithm_is_asked_for_take_no_tf32_on_cuda_where_that_is_forbidden() -> None:
    """As products."""
    off, forbidden = {"torch.cudnn.allow_tf32": False}, {"allow_fp32_emulation": False}
    held = ("approximated", off, "torch's own path takes no TF32")
    check(
        [
            ("cuda", forbidden | {"conv_allow_tf32": allowed}, {"conv_allow_tf32": expected, "allow_fp32_emulation": held})
            for allowed, expected in (
                (True, ("inert", {}, "overridden by allow_fp32_emulation=False")),
                (False, ("approximated", off, "cuDNN's RNNs")),
            )
        ]
    )
    asked = forbidden | {"conv_allow_tf32": True}
    assert planned(asked, on="cuda").assignments == off
    assert planned(forbidden, {"conv_allow_tf32": True}, on="cuda").assignments == off
    products = {"matmul_allow_tf32": True}
    assert planned(asked | products, on="cuda").assignments == off | {"torch.cuda.matmul.allow_tf32": False}
    without = ("approximated", off, "no cuDNN; torch's own path takes no TF32")
    check([("cuda", asked | {"conv_fprop_algo": "gemm"}, {"allow_fp32_emulation": without})], cudnn="no cuDNN")
    may = {"conv_allow_tf32": True, "allow_fp32_emulation": True}
    check([("cuda", may, {"allow_fp32_emulation": ("honoured", {}, "holds for cuDNN's convolutions")})])
    check([("cuda", may | products, {"allow_fp32_emulation": ("honoured", {}, "cuDNN's convolutions and cuBLAS's products")})])


def test_each_devices_group_means_it_alone() -> None:
    options = {"conv_allow_tf32": True, "gpu_config": {"conv_allow_tf32": False}, "cpu_config": {"matmul_allow_tf32": True}}
    found = planned(options, on=("cpu", "cuda"))
    policy = ConvPolicy(matmul_algo="normal", matmul_allow_tf32=True, conv_allow_tf32=True)
    assert found.assignments == {"torch.cudnn.allow_tf32": False, "native.convolution.cpu": policy} | INDUCTOR
    assert {(r.spelling, r.device, r.value) for r in found.rows} == {
        ("conv_allow_tf32", "cpu", True),
        ("conv_allow_tf32", "cuda", True),  # overridden
        ("gpu_config.conv_allow_tf32", "cuda", False),
        ("cpu_config.matmul_allow_tf32", "cpu", True),
    }


def test_what_leaves_nothing_that_rounds_is_reported() -> None:
    together, limited = "scale the values of a batch together", "below every bound of what rounds"
    check(
        [
            ("cpu", {option: True, more: value, algo: "normal"}, {option: (status, given, why)})
            for option, algo, more, value, status, given, why in (
                ("matmul_allow_tf32", "matmul_algo", "batch_invariant", True, "inert", {}, together),
                ("matmul_allow_tf32", "matmul_algo", "matmul_max_error", 1e-6, "inert", {}, limited),
                ("conv_allow_tf32", "conv_fprop_algo", "conv_max_error", 2e-6, "inert", {}, limited),
            )
        ]
    )
    named = {"conv_allow_tf32": True, "conv_fprop_algo": "implicit_gemm", "conv_max_error": 2e-6}
    check([("cpu", named, {"conv_allow_tf32": ("honoured", {}, "part of the policy")})])
