"""Points of a grid of options."""

from __future__ import annotations

from msctx.compare.grid import asked_algorithm, every_algorithm, points, relevant
from msctx.options import make_layer


def test_the_product_of_axes() -> None:
    found = points({"conv_allow_tf32": [False, True], "way": {"plain": None, "fast": {"conv_fprop_algo": "gemm"}}})
    assert [point.name for point in found] == [
        *("conv_allow_tf32=false, plain", "conv_allow_tf32=false, fast"),
        *("conv_allow_tf32=true, plain", "conv_allow_tf32=true, fast"),
    ]
    assert found[3].options == {"conv_allow_tf32": True, "conv_fprop_algo": "gemm"}


def test_what_has_a_say_in_a_direction() -> None:
    options = {"conv_fprop_algo": "gemm", "gpu_config.conv_dgrad_algo": "fft", "deterministic": "ON"}
    assert relevant(options, "dgrad") == {"gpu_config.conv_dgrad_algo": "fft", "deterministic": "ON"}
    assert relevant(options, "training") == options
    assert [asked_algorithm(options, direction) for direction in ("fprop", "dgrad", "wgrad")] == ["gemm", "fft", ""]


def test_every_algorithm_is_one_that_its_options_take() -> None:
    found = every_algorithm()
    assert {"normal", "performance", "gemm", "algo_1", "winograd"} <= set(found)
    for options in found.values():
        make_layer(options, "test")
    assert every_algorithm(["dgrad"])["winograd"] == {"conv_dgrad_algo": "winograd"}
