"""matmul_algo on CUDA: what cuBLAS computes by torch's own flags, and what it cannot."""

import pytest
from plans import Options, check, planned, rows

FLAG = "torch.cuda.matmul.allow_tf32"
AUTOTUNED = {"torch.inductor.max_autotune_gemm": True}
EMULATED = "CUBLAS_EMULATE_SINGLE_PRECISION=1"


def test_what_cublas_computes_goes_by_torchs_own_flag() -> None:
    check(
        [
            ("cuda", {"matmul_algo": "strict"}, {"matmul_algo": ("honoured", {FLAG: False}, "")}),
            ("cuda", {"matmul_algo": "tf32"}, {"matmul_algo": ("approximated", {FLAG: True}, "cuBLAS chooses")}),
            ("cuda", {"matmul_algo": "normal"}, {"matmul_algo": ("honoured", {}, "cuBLAS chooses")}),
            ("cuda", {"matmul_algo": "bf16x9"}, {"matmul_algo": ("refused", {}, "from compute capability 10.0 on")}),
            ("cuda", {"matmul_algo": "reference"}, {"matmul_algo": ("refused", {}, "on the CPU alone")}),
            *(
                ("cuda", {"matmul_algo": name}, {"matmul_algo": ("not_built", {}, "products of msctx's own")})
                for name in ("fp16x3", "int8x6", "bf16x6", "bf16x3")
            ),
        ]
    )
    why = ("refused", {}, f"{EMULATED} makes cuBLAS compute")
    check(
        [
            ("cuda", {"matmul_algo": "strict"}, {"matmul_algo": why}),
            ("cuda", {"allow_fp32_emulation": False}, {"allow_fp32_emulation": why}),
            ("cuda", {"matmul_algo": "bf16x9"}, {"matmul_algo": ("approximated", {FLAG: False}, "computes in float32")}),
        ],
        cublas=EMULATED,
    )


@pytest.mark.parametrize("allowed", [True, False])
def test_normal_takes_what_is_allowed(allowed: bool) -> None:
    options = {"matmul_algo": "normal", "matmul_allow_tf32": allowed}
    found = rows(options, on="cuda")
    assert {row.status for row in found.values()} == {"honoured"}
    assert planned(options, on="cuda").assignments == {FLAG: allowed}
    exact = planned(options | {"allow_fp32_emulation": False}, on="cuda")
    assert exact.assignments == {FLAG: False}
    statuses = {row.option: row.status for row in exact.rows}
    assert (statuses["matmul_allow_tf32"], statuses["allow_fp32_emulation"]) == ("inert" if allowed else "honoured", "honoured")


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_named_wins_over_what_is_allowed_in_either_order(order: int) -> None:
    """As on a CPU."""
    options = dict([("matmul_algo", "strict"), ("matmul_allow_tf32", True)][::order])
    made = planned(options, on="cuda")
    assert made.assignments == {FLAG: False}
    (row,) = (row for row in made.rows if row.option == "matmul_allow_tf32")
    assert (row.status, "overridden by matmul_algo=strict" in row.reason) == ("inert", True)
    check([("cuda", {"matmul_algo": "tf32", "matmul_allow_tf32": False}, {"matmul_algo": ("refused", {}, "it rounds")})])
    refused = {"matmul_algo": "tf32", "allow_fp32_emulation": False}
    assert planned(refused, on="cuda").assignments == {FLAG: False}


def test_scopes_come_to_what_is_in_force_in_the_inner_one() -> None:
    strict, tf32 = {"matmul_algo": "strict"}, {"matmul_algo": "tf32"}
    assert planned(strict, {"matmul_allow_tf32": True}, on="cuda").assignments == {FLAG: False}
    assert planned(strict, tf32, on="cuda").assignments == {FLAG: True}
    assert planned(strict, {"matmul_algo": "normal"}, on="cuda").assignments == {}, "torch's flag is as it was found"
    measured = planned(tf32, {"matmul_algo": "performance"}, on="cuda")
    assert measured.assignments == AUTOTUNED


def test_performance_is_measured_in_compiled_code() -> None:
    check(
        [
            ("cuda", options, {"matmul_algo": ("approximated", given, why)})
            for options, given, why in (
                ({"matmul_algo": "performance"}, AUTOTUNED, "eager code cuBLAS chooses"),
                ({"matmul_algo": "performance", "matmul_allow_tf32": True}, AUTOTUNED | {FLAG: True}, "Triton's"),
                ({"matmul_algo": "performance", "deterministic": "ON"}, {}, "nothing is measured under deterministic=ON"),
                ({"matmul_algo": "performance", "thread_invariant": True}, {}, "nothing is measured under thread_invariant"),
                ({"matmul_algo": "performance", "conv_fprop_algo": "gemm"}, {}, "asked for convolutions"),
            )
        ]
    )
    beside: Options = {"matmul_algo": "performance", "conv_fprop_algo": "performance"}
    assert planned(beside, on="cuda").assignments["torch.inductor.max_autotune_gemm"] is False
    recorded: Options = {"matmul_algo": "performance", "aoe_tune_mode": "offline"}
    assert planned(recorded, on="cuda").assignments["torch.inductor.max_autotune_gemm"] is True


def test_products_alone_are_what_emulation_may_be_forbidden_for() -> None:
    for asking in ({"matmul_algo": "normal"}, {"matmul_allow_tf32": True}, {"matmul_algo": "strict"}):
        check(
            [
                (
                    "cuda",
                    asking | {"allow_fp32_emulation": False},
                    {"allow_fp32_emulation": ("honoured", {FLAG: False}, "cuBLAS")},
                )
            ]
        )
        check([("cuda", asking | {"allow_fp32_emulation": True}, {"allow_fp32_emulation": ("honoured", {}, "cuBLAS")})])
    both = {"matmul_algo": "normal", "conv_fprop_algo": "gemm", "allow_fp32_emulation": False}
    given = {"torch.cudnn.allow_tf32": False, FLAG: False}
    check([("cuda", both, {"allow_fp32_emulation": ("approximated", given, "torch's own path takes no TF32")})])
    without = ("approximated", {FLAG: False}, "no cuDNN")
    check([("cuda", both, {"allow_fp32_emulation": without})], cudnn="no cuDNN")
    alone = ("inert", {}, "or with conv_allow_tf32, matmul_algo")
    check([("cuda", {"allow_fp32_emulation": False}, {"allow_fp32_emulation": alone})])
