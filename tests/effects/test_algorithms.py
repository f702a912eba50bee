"""conv_*_algo and what goes with them come to one policy of the native core."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.effects.algorithms import ALGORITHMS
from msctx.native import core, environment_key
from msctx.options import Settings, make_layer
from msctx.options.conv_policy import ConvPolicy

INDUCTOR = {
    "torch.inductor.freezing": False,
    "torch.inductor.cpp_wrapper": False,
    "torch.inductor.max_autotune": False,
    "torch.inductor.max_autotune_gemm": False,
    "torch.inductor.max_autotune_conv_backends": "ATEN",
    "torch.inductor.conv_1x1_as_mm": False,
}


def carried_out(device: str = "cpu", **fields: object) -> dict[str, object]:
    """The assignments of a policy of these fields."""
    return {f"native.convolution.{device}": ConvPolicy(**fields), **INDUCTOR}


NO_UNIT = "this processor has no matrix unit (AMX)"


def rows(
    device: str = "cpu", native: str = "", cudnn: str = "", matrix_unit: str = "", **options: object
) -> dict[str, plan.Row]:
    devices = ("cpu",) if device == "cpu" else ("cpu", device)
    facts = Facts(devices=devices, native=native, cudnn=cudnn, matrix_unit=matrix_unit)
    made = plan.make(Settings([make_layer(options, "test")]), facts)
    return {row.option: row for row in made.rows if row.device == device and not row.winner}


def test_an_algorithm_is_a_field_of_the_policy() -> None:
    row = rows(conv_fprop_algo="winograd")["conv_fprop_algo"]
    assert (row.status, row.reason) == ("honoured", "")
    assert row.assignments == carried_out(conv_fprop_algo="winograd")


def test_the_group_of_the_cpu_wins_over_the_flat_spelling() -> None:
    row = rows(conv_fprop_algo="winograd", cpu_config={"conv_fprop_algo": "gemm"})["conv_fprop_algo"]
    assert row.assignments == carried_out(conv_fprop_algo="gemm")


def test_on_cuda_it_is_a_policy_for_cudnn() -> None:
    options = {"conv_fprop_algo": "winograd", "fallback": "silent", "conv_workspace_limit": "1MB", "tuning_file": "t.json"}
    row = rows("cuda", **options)["conv_fprop_algo"]
    assert row.status == "honoured"
    assert "MindSpore always takes implicit_precomp_gemm and algo_1" in row.reason
    tuning_file = row.assignments["native.convolution.cuda"].tuning_file
    assert tuning_file.endswith("t.json")
    wanted = {"conv_fprop_algo": "winograd", "fallback": "silent", "conv_workspace_limit": 2**20, "tuning_file": tuning_file}
    assert row.assignments == carried_out("cuda", **wanted, conv_allow_tf32=True)
    assert rows("cuda", conv_algo_rules="a: gemm")["conv_algo_rules"].status == "honoured"
    assert "cuDNN never implemented it" in rows("cuda", conv_fprop_algo="direct")["conv_fprop_algo"].reason
    assert rows("cuda", **options)["conv_workspace_limit"].status == "honoured"
    tf32 = rows("cuda", conv_fprop_algo="gemm", conv_allow_tf32=False)
    assert tf32["conv_fprop_algo"].assignments["native.convolution.cuda"].conv_allow_tf32 is False
    found = rows("cuda", conv_fprop_algo="gemm", deterministic="ON")
    assert found["deterministic"].assignments["native.convolution.cuda"].deterministic
    refused = rows("cuda", conv_dgrad_algo="algo_0", deterministic="ON")["conv_dgrad_algo"]
    assert (refused.status, "no fixed order" in refused.reason) == ("refused", True)


def test_without_cudnn_it_is_refused_with_the_reason() -> None:
    found = rows("cuda", cudnn="no cuDNN", conv_fprop_algo="gemm", conv_algo_rules="a: gemm", fallback="error")
    assert {(row.status, row.reason) for row in found.values()} == {("refused", "no cuDNN")}
    assert rows(cudnn="no cuDNN", conv_fprop_algo="gemm")["conv_fprop_algo"].status == "honoured"


def test_what_cudnn_cannot_be_told_is_not_built() -> None:
    found = rows("cuda", conv_fprop_algo="gemm", conv_max_error=1e-6, thread_invariant=True, frozen_weights=True)
    assert {name: found[name].status for name in found} == {
        "conv_fprop_algo": "honoured",
        "conv_max_error": "not_built",
        "thread_invariant": "inert",
        "frozen_weights": "inert",
    }
    assert "cuDNN states none" in found["conv_max_error"].reason
    assert rows("cuda", thread_invariant=False)["thread_invariant"].status == "inert"
    assert rows("cuda", thread_invariant=True, fallback="error")["fallback"].status == "inert", (
        "there nothing is asked for by it"
    )
    row = rows("cuda", conv_fprop_algo="reference")["conv_fprop_algo"]
    assert (row.status, "on the CPU alone" in row.reason) == ("refused", True)


def test_without_emulation_nothing_takes_tf32_on_cuda() -> None:
    for tf32 in ({}, {"conv_allow_tf32": True}, {"conv_allow_tf32": False}):
        made = plan.make(
            Settings([make_layer({"conv_fprop_algo": "gemm", "allow_fp32_emulation": False, **tf32}, "test")]),
            Facts.only("cuda"),
        )
        assert made.assignments["native.convolution.cuda"].allow_fp32_emulation is False
        assert made.assignments["torch.cudnn.allow_tf32"] is False, "torch's own path is one of those that run"
        allowing = [row.status for row in made.rows if row.option == "conv_allow_tf32" and row.value]
        assert allowing == ["inert"] * len(allowing)
    alone = rows("cuda", allow_fp32_emulation=False, conv_allow_tf32=True)
    assert alone["allow_fp32_emulation"].status == "inert"
    assert alone["conv_allow_tf32"].assignments == {"torch.cudnn.allow_tf32": True}
    assert rows("cuda", conv_fprop_algo="gemm", allow_fp32_emulation=True)["allow_fp32_emulation"].assignments == {}


def test_on_ascend_it_means_nothing() -> None:
    assert rows("ascend", conv_fprop_algo="winograd")["conv_fprop_algo"].status == "inert"


def test_without_a_native_core_it_is_refused_with_the_reason() -> None:
    options = {"conv_wgrad_algo": "algo_1", "conv_algo_rules": "a: gemm", "thread_invariant": True, "fallback": "error"}
    options["enable_small_channel"] = 1
    found = rows(native="no C++ compiler", **options)
    assert {(name, row.status, row.reason) for name, row in found.items()} == {
        (n, "refused", "no C++ compiler") for n in options
    }
    assert all(not row.assignments for row in found.values())


def test_details_are_part_of_the_policy_of_the_algorithms() -> None:
    found = rows(conv_dgrad_algo="algo_1", fallback="silent", conv_workspace_limit="1MB", deterministic="ON")
    wanted = {"conv_dgrad_algo": "algo_1", "fallback": "silent", "conv_workspace_limit": 2**20, "deterministic": True}
    assert found["conv_dgrad_algo"].assignments == carried_out(**wanted)
    assert {found[name].status for name in ("fallback", "conv_workspace_limit")} == {"honoured"}
    assert found["deterministic"].assignments["native.convolution.cpu"] == ConvPolicy(**wanted)


@pytest.mark.parametrize(
    "options", [{"fallback": "error"}, {"conv_workspace_limit": 0}, {"conv_max_error": 1e-6}, {"frozen_weights": True}]
)
def test_a_detail_without_an_algorithm_is_inert(options: dict[str, object]) -> None:
    (row,) = rows(**options).values()
    assert row.status == "inert"
    assert "no algorithm is asked for" in row.reason


def test_strict_implies_that_a_fallback_is_an_error_unless_it_is_said_otherwise() -> None:
    assert rows(conv_fprop_algo="fft", strict=True)["conv_fprop_algo"].assignments == carried_out(
        conv_fprop_algo="fft", fallback="error"
    )
    said = rows(conv_fprop_algo="fft", strict=True, fallback="silent")["conv_fprop_algo"]
    assert said.assignments == carried_out(conv_fprop_algo="fft", fallback="silent")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("conv_dgrad_algo", "algo_0"),
        ("conv_wgrad_algo", "algo_0"),
        ("conv_wgrad_algo", "algo_3"),
    ],
)
@pytest.mark.parametrize("same_bits", [{"deterministic": "ON"}, {"thread_invariant": True}])
def test_what_keeps_no_bits_is_refused_where_they_are_to_be_the_same(
    name: str, value: str, same_bits: dict[str, object]
) -> None:
    assert rows(**{name: value})[name].status == "honoured"
    row = rows(**{name: value}, **same_bits)[name]
    assert (row.status, row.assignments) == ("refused", {})
    assert "no fixed order" in row.reason
    status = "refused" if "deterministic" in same_bits else "honoured"
    assert rows("cuda", **{name: value}, **same_bits)[name].status == status, "thread_invariant means nothing on CUDA"


def test_performance_measures_nothing_under_determinism() -> None:
    row = rows(conv_fprop_algo="performance", deterministic="ON")["conv_fprop_algo"]
    assert row.status == "approximated"
    assert "nothing is measured" in row.reason


def test_thread_invariant_says_for_what_nothing_is_promised() -> None:
    row = rows(thread_invariant=True)["thread_invariant"]
    assert (row.status, row.assignments) == ("approximated", carried_out(thread_invariant=True))
    assert "matrix products" in row.reason
    assert rows(thread_invariant=False)["thread_invariant"].assignments == {}


def test_few_channels_are_a_rule_of_the_policy_where_an_algorithm_is_left_open() -> None:
    row = rows(enable_small_channel=1, conv_fprop_algo="gemm")["enable_small_channel"]
    few = "dims=2 input=*x[1-4]x*x*: dgrad=normal, wgrad=normal"
    assert (row.status, row.assignments) == ("approximated", carried_out(conv_fprop_algo="gemm", conv_algo_rules=few))
    after = rows(enable_small_channel=1, conv_algo_rules="a: gemm")["enable_small_channel"]
    assert after.assignments["native.convolution.cpu"].conv_algo_rules == (
        "a: fprop=gemm; dims=2 input=*x[1-4]x*x*: fprop=normal, dgrad=normal, wgrad=normal"
    )
    assert rows(enable_small_channel=0)["enable_small_channel"].assignments == {}
    taken = rows(enable_small_channel=1, **dict.fromkeys(ALGORITHMS, "normal"))["enable_small_channel"]
    assert (taken.status, taken.assignments) == ("inert", {})
    assert {device: rows(device, enable_small_channel=1)["enable_small_channel"].status for device in ("cuda", "ascend")} == {
        "cuda": "not_built",
        "ascend": "not_built",
    }


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("value", [True, False])
def test_memory_formats_are_inductors_to_change(device: str, value: bool) -> None:
    row = rows(device, disable_format_transform=value)["disable_format_transform"]
    assert (row.status, row.assignments) == ("approximated", {"torch.inductor.layout_optimization": not value})
    assert "inductor" in row.reason


def test_determinism_alone_asks_nothing_of_the_native_core() -> None:
    assert not any(switch.startswith("native.") for switch in msctx.explain({"deterministic": "ON"}).assignments)


@pytest.mark.parametrize("value", [True, False])
def test_what_rounding_is_allowed_is_part_of_the_policy(value: bool) -> None:
    found = rows(conv_fprop_algo="implicit_gemm", conv_allow_tf32=value, allow_fp32_emulation=value)
    policy = found["conv_fprop_algo"].assignments["native.convolution.cpu"]
    assert (policy.conv_allow_tf32, policy.allow_fp32_emulation) == (value, value)
    assert {found[name].status for name in ("conv_allow_tf32", "allow_fp32_emulation")} == {"honoured"}


def test_an_error_bound_does_not_apply_to_what_is_named() -> None:
    for named in (
        {"conv_fprop_algo": "gemm"},
        {"conv_algo_rules": {"weight=8x8x3x3": "winograd"}},
        {"conv_fprop_algo": "fft", "conv_algo_rules": "a: dgrad=algo_1"},
        dict.fromkeys(ALGORITHMS, "fft"),
    ):
        row = rows(conv_max_error=1e-9, **named)["conv_max_error"]
        assert (row.status, "an algorithm that is named runs whatever its bound" in row.reason) == ("inert", True), named
    for asking in ({"conv_dgrad_algo": "normal"}, {"conv_algo_rules": "a: dgrad=performance"}, {"thread_invariant": True}):
        some = rows(conv_max_error=1e-9, conv_fprop_algo="fft", **asking)["conv_max_error"]
        assert (some.status, "conv_fprop_algo=fft runs whatever its bound" in some.reason) == ("approximated", True), asking
    for asking in ({"thread_invariant": True}, dict.fromkeys(ALGORITHMS, "normal"), {"conv_algo_rules": "a: normal"}):
        assert rows(conv_max_error=1e-9, **asking)["conv_max_error"].status == "honoured", asking


def test_tf32_is_inert_where_nothing_that_is_asked_for_can_take_it() -> None:
    for named, who in (
        ({"conv_fprop_algo": "gemm"}, "conv_fprop_algo=gemm"),
        ({"conv_algo_rules": {"a": "gemm"}}, "fprop=gemm of conv_algo_rules"),
        ({"conv_fprop_algo": "fft", "conv_algo_rules": {"a": "gemm"}}, "conv_fprop_algo=fft, fprop=gemm of conv_algo_rules"),
    ):
        row = rows(conv_allow_tf32=True, **named)["conv_allow_tf32"]
        assert (row.status, row.reason) == ("inert", f"no algorithm that is asked for can round to TF32: {who}")
    row = rows(conv_allow_tf32=True, conv_fprop_algo="normal", allow_fp32_emulation=False)["conv_allow_tf32"]
    assert (row.status, "overridden by allow_fp32_emulation=False" in row.reason) == ("inert", True)
    for asking in ({"conv_fprop_algo": "implicit_gemm"}, {"thread_invariant": True}, {"conv_algo_rules": "a: algo_1"}):
        assert rows(conv_allow_tf32=True, **asking)["conv_allow_tf32"].status == "honoured", asking
    assert rows(conv_allow_tf32=False, conv_fprop_algo="gemm")["conv_allow_tf32"].status == "honoured"


@pytest.mark.parametrize("name", ["implicit_gemm", "normal"])
def test_tf32_needs_a_matrix_unit(name: str) -> None:
    row = rows(matrix_unit=NO_UNIT, conv_allow_tf32=True, conv_fprop_algo=name)["conv_allow_tf32"]
    assert (row.status, row.reason) == ("inert", f"{NO_UNIT}, which alone rounds to TF32")
    for value in (True, False):
        options = {"conv_allow_tf32": value, "conv_fprop_algo": name}
        assert msctx.explain(options, device="cpu").rows[-1].status == "honoured", "a plan of a machine that is not this one"


def test_whether_this_machine_has_a_matrix_unit_is_read_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa, told in (("amx", ""), ("avx2", "MSCTX_ISA=avx2 has no matrix unit (AMX)")):
        monkeypatch.setenv(core.ISA_VARIABLE, isa)
        assert core.matrix_unit_obstacle() == told
    monkeypatch.delenv(core.ISA_VARIABLE)
    for flags, told in (("amx_bf16 amx_int8 amx_tile avx2", ""), ("avx2 fma", NO_UNIT), ("", "")):
        monkeypatch.setattr(environment_key, "cpu", lambda flags=flags: ("a processor", flags))
        assert core.matrix_unit_obstacle() == told


@pytest.mark.parametrize(
    ("options", "unable", "able"),
    [
        ({"allow_fp32_emulation": False}, ["gemm", "fft", "direct", "reference"], ["winograd", "implicit_gemm", "normal"]),
        ({"frozen_weights": True}, ["gemm", "reference"], ["direct", "winograd", "implicit_gemm", "fft", "normal"]),
        ({"conv_workspace_limit": 0}, ["reference"], ["gemm", "direct", "implicit_gemm", "winograd", "performance"]),
    ],
)
def test_a_detail_is_inert_beside_algorithms_that_it_does_not_concern(
    options: dict[str, object], unable: list[str], able: list[str]
) -> None:
    (detail,) = options
    for names, status in ((unable, "inert"), (able, "honoured")):
        for name in names:
            for asking in ({"conv_fprop_algo": name}, {"conv_algo_rules": f"a: fprop={name}"}):
                row = rows(**options, **asking)[detail]
                assert row.status == status, (name, row)
                assert (f"fprop_algo={name}" in row.reason or f"fprop={name} of" in row.reason) is (status == "inert")
    assert rows(**options, conv_algo_rules=f"a: fprop={unable[0]}; b: fprop={able[0]}")[detail].status == "honoured"


def test_no_weight_is_kept_for_its_own_gradient_and_casts_are_kept_beside_any_algorithm() -> None:
    for named in ({"conv_wgrad_algo": "fft"}, {"conv_wgrad_algo": "algo_1"}):
        assert rows(frozen_weights=True, **named)["frozen_weights"].status == "inert"
    row = rows(frozen_weights=True, conv_fprop_algo="gemm", precision_mode="force_fp16")["frozen_weights"]
    assert (row.status, "casts" in row.reason) == ("honoured", True)


@pytest.mark.parametrize("options", [{"frozen_weights": True}, {"conv_workspace_limit": 0}, {"allow_fp32_emulation": False}])
def test_what_only_a_matrix_unit_does_for_an_algorithm_is_inert_without_one(options: dict[str, object]) -> None:
    (detail,) = options
    row = rows(matrix_unit=NO_UNIT, conv_fprop_algo="implicit_gemm", **options)[detail]
    if detail == "allow_fp32_emulation":  # nothing is computed from parts, as it asks
        assert row.status == "honoured"
    else:
        assert (row.status, row.reason.endswith(NO_UNIT)) == ("inert", True)


def test_a_module_named_performance_asks_for_no_measurements() -> None:
    assert rows(tuning_file="t.json", conv_algo_rules="performance_head: gemm")["tuning_file"].status == "inert"
    assert rows(tuning_file="t.json", conv_algo_rules="head: fprop=performance")["tuning_file"].status == "honoured"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_falls_back_from_what_chooses_torch_too(device: str) -> None:
    """tests/native/test_fallback.py shows it: under both, what msctx cannot compute runs torch's path and raises nothing."""
    choosing = rows(device, conv_fprop_algo="normal", conv_dgrad_algo="performance", fallback="error")["fallback"]
    assert (choosing.status, "nothing falls back" in choosing.reason) == ("inert", True)
    assert rows(device, conv_fprop_algo="normal", conv_algo_rules="a: gemm", fallback="error")["fallback"].status == "honoured"
    assert rows("cpu", thread_invariant=True, fallback="error")["fallback"].status == "honoured"


def test_rules_that_name_what_adds_in_no_fixed_order() -> None:
    """They hold but for that: tests/native/test_fallback.py shows that it falls back."""
    rules = {"a": {"dgrad": "algo_0", "wgrad": "algo_3"}, "b": {"wgrad": "algo_1"}}
    found = rows(conv_algo_rules=rules, deterministic="ON")["conv_algo_rules"]
    assert found.status == "approximated"
    assert found.reason == "dgrad=algo_0, wgrad=algo_3 adds in no fixed order and falls back under deterministic"
    assert rows(conv_algo_rules=rules, thread_invariant=True)["conv_algo_rules"].status == "approximated"
    assert rows("cuda", conv_algo_rules=rules, thread_invariant=True)["conv_algo_rules"].status == "honoured"
    assert rows(conv_algo_rules=rules)["conv_algo_rules"].status == "honoured"
    assert rows(conv_algo_rules="b: wgrad=algo_1", deterministic="ON")["conv_algo_rules"].status == "honoured"
