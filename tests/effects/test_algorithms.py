"""conv_*_algo and what goes with them come to one policy of the native core."""

from dataclasses import replace
from typing import Any

import pytest
from plans import Options, check, planned, rows

import msctx
from msctx import plan
from msctx.effects.algorithms import ALGORITHMS
from msctx.native import core, environment_key
from msctx.options.conv_policy import ConvPolicy

INDUCTOR = {
    "torch.inductor.freezing": False,
    "torch.inductor.cpp_wrapper": False,
    "torch.inductor.max_autotune": False,
    "torch.inductor.max_autotune_gemm": False,
    "torch.inductor.max_autotune_conv_backends": "ATEN",
    "torch.inductor.conv_1x1_as_mm": False,
}
NO_UNIT = "this processor has no matrix unit (AMX)"
RULES = {"a": "gemm", "b": "dgrad=algo_0", "c": "wgrad=algo_3", "d": "wgrad=algo_1"}


def carried_out(device: str = "cpu", **fields: Any) -> dict[str, Any]:
    """The assignments of a policy of these fields."""
    return {f"native.convolution.{device}": ConvPolicy(**fields), **INDUCTOR}


def row(option: str, options: Options, on: str = "cpu", **facts: Any) -> plan.Row:
    return rows(options, on=on, beside_cpu=True, **facts)[option]


def test_an_algorithm_is_a_field_of_the_policy() -> None:
    gemm = {"conv_fprop_algo": "winograd", "cpu_config": {"conv_fprop_algo": "gemm"}}
    detailed = {"conv_dgrad_algo": "algo_1", "fallback": "silent", "conv_workspace_limit": 2**20}
    strict = {"conv_fprop_algo": "fft", "strict": True}
    check(
        [
            ("cpu", gemm, {"conv_fprop_algo": ("honoured", carried_out(conv_fprop_algo="gemm"), "")}),
            ("cpu", detailed, {"conv_dgrad_algo": ("honoured", carried_out(**detailed), "")}),
            *(
                ("cpu", detailed, {name: ("honoured", {}, "part of the policy")})
                for name in ("fallback", "conv_workspace_limit")
            ),
            ("cpu", strict, {"conv_fprop_algo": ("honoured", carried_out(conv_fprop_algo="fft", fallback="error"), "")}),
            (
                *("cpu", strict | {"fallback": "silent"}),
                {"conv_fprop_algo": ("honoured", carried_out(conv_fprop_algo="fft", fallback="silent"), "")},
            ),
            ("ascend", {"conv_fprop_algo": "winograd"}, {"conv_fprop_algo": ("inert", {}, "no meaning on ascend")}),
        ]
    )
    for device in ("cpu", "cuda"):
        found = planned({**detailed, "deterministic": "ON"}, on=device).assignments[f"native.convolution.{device}"]
        assert found.deterministic
        assert (found.conv_dgrad_algo, found.fallback, found.conv_workspace_limit) == tuple(detailed.values())
    assert not any(switch.startswith("native.") for switch in msctx.explain({"deterministic": "ON"}).assignments)
    for value in (True, False):
        asked = {"conv_fprop_algo": "implicit_gemm", "conv_allow_tf32": value, "allow_fp32_emulation": value}
        policy = planned(asked).assignments["native.convolution.cpu"]
        assert (policy.conv_allow_tf32, policy.allow_fp32_emulation) == (value, value)
        assert {r.status for r in rows(asked).values()} == {"honoured"}


def test_on_cuda_it_is_a_policy_for_cudnn() -> None:
    options = {"conv_fprop_algo": "winograd", "fallback": "silent", "conv_workspace_limit": "1MB", "tuning_file": "t.json"}
    found = row("conv_fprop_algo", options, on="cuda")
    tuning_file = found.assignments["native.convolution.cuda"].tuning_file
    assert tuning_file.endswith("t.json")
    wanted = options | {"conv_workspace_limit": 2**20, "tuning_file": tuning_file, "conv_allow_tf32": True}
    assert (found.status, found.assignments) == ("honoured", carried_out("cuda", **wanted))
    assert "MindSpore always takes implicit_precomp_gemm and algo_1" in found.reason
    assert "cuDNN never implemented it" in row("conv_fprop_algo", {"conv_fprop_algo": "direct"}, on="cuda").reason
    assert row("conv_algo_rules", {"conv_algo_rules": "a: gemm"}, on="cuda").status == "honoured"
    tf32 = row("conv_fprop_algo", {"conv_fprop_algo": "gemm", "conv_allow_tf32": False}, on="cuda")
    assert tf32.assignments["native.convolution.cuda"].conv_allow_tf32 is False


def test_what_cudnn_cannot_be_given_is_reported() -> None:
    gemm = {"conv_fprop_algo": "gemm"}
    key = "ge.enableSmallChannel"
    of_graphs = {"torch.npu.graph_options": {key: "1"}, "torch.dynamo.apart": (f"{key}=1",)}
    check(
        [
            *(
                ("cuda", asking | {option: 1e-6}, {option: ("refused", {}, "name an algorithm instead")})
                for option, asking in (("conv_max_error", gemm), ("matmul_max_error", {"matmul_algo": "normal"}))
            ),
            ("cuda", gemm | {"frozen_weights": True}, {"frozen_weights": ("inert", {}, "cuDNN keeps no form of a weight")}),
            ("cuda", {"thread_invariant": False}, {"thread_invariant": ("inert", {}, "no meaning on cuda")}),
            ("cuda", {"thread_invariant": True, "fallback": "error"}, {"fallback": ("inert", {}, "no algorithm is asked for")}),
            ("cuda", {"conv_fprop_algo": "reference"}, {"conv_fprop_algo": ("refused", {}, "on the CPU alone")}),
            ("ascend", {"enable_small_channel": 1}, {"enable_small_channel": ("approximated", of_graphs, "torchair")}),
        ]
    )


def test_without_emulation_nothing_takes_tf32_on_cuda() -> None:
    for tf32 in ({}, {"conv_allow_tf32": True}, {"conv_allow_tf32": False}):
        made = planned({"conv_fprop_algo": "gemm", "allow_fp32_emulation": False, **tf32}, on="cuda")
        assert made.assignments["native.convolution.cuda"].allow_fp32_emulation is False
        assert made.assignments["torch.cudnn.allow_tf32"] is False, "torch's own path is one of those that run"
        allowing = [r.status for r in made.rows if r.option == "conv_allow_tf32" and r.value]
        assert allowing == ["inert"] * len(allowing)
    allowed = {"conv_fprop_algo": "gemm", "allow_fp32_emulation": True}
    assert row("allow_fp32_emulation", allowed, on="cuda").assignments == {}


def test_without_the_library_it_is_refused_with_the_reason() -> None:
    options = {"conv_wgrad_algo": "algo_1", "conv_algo_rules": "a: gemm", "fallback": "error"}
    own = options | {"thread_invariant": True, "enable_small_channel": 1}
    for on, asked, facts in (("cpu", own, {"native": "no compiler"}), ("cuda", options, {"cudnn": "no cuDNN"})):
        refused = ("refused", {}, next(iter(facts.values())))
        check([(on, asked, dict.fromkeys(asked, refused))], **facts)
    assert row("conv_fprop_algo", {"conv_fprop_algo": "gemm"}, cudnn="no cuDNN").status == "honoured"


def test_what_adds_in_no_fixed_order_is_refused_where_bits_are_to_be_the_same() -> None:
    """Where rules name it, they hold but for that: tests/native/test_fallback.py shows that it falls back."""
    for name, value in (("conv_dgrad_algo", "algo_0"), ("conv_wgrad_algo", "algo_0"), ("conv_wgrad_algo", "algo_3")):
        assert row(name, {name: value}).status == "honoured"
        for same_bits, on_cuda in (({"deterministic": "ON"}, "refused"), ({"thread_invariant": True}, "honoured")):
            found = row(name, {name: value, **same_bits})
            assert (found.status, found.assignments, "no fixed order" in found.reason) == ("refused", {}, True)
            assert row(name, {name: value, **same_bits}, on="cuda").status == on_cuda, "thread_invariant means nothing there"
    ordered = {"conv_algo_rules": "b: wgrad=algo_1", "deterministic": "ON"}
    found = row("conv_algo_rules", {"conv_algo_rules": RULES, "deterministic": "ON"})
    assert found.status == "approximated"
    assert found.reason == "dgrad=algo_0, wgrad=algo_3 adds in no fixed order and falls back under deterministic"
    invariant = {"conv_algo_rules": RULES, "thread_invariant": True}
    assert row("conv_algo_rules", invariant).status == "approximated"
    for options, on in ((invariant, "cuda"), ({"conv_algo_rules": RULES}, "cpu"), (ordered, "cpu")):
        assert row("conv_algo_rules", options, on=on).status == "honoured", options


def test_what_is_chosen_is_limited_by_what_is_promised() -> None:
    measured = row("conv_fprop_algo", {"conv_fprop_algo": "performance", "deterministic": "ON"})
    assert (measured.status, "nothing is measured" in measured.reason) == ("approximated", True)


def test_few_channels_are_a_rule_of_the_policy_where_an_algorithm_is_left_open() -> None:
    found = row("enable_small_channel", {"enable_small_channel": 1, "conv_fprop_algo": "gemm"})
    few = "dims=2 input=*x[1-4]x*x*: dgrad=normal, wgrad=normal"
    assert (found.status, found.assignments) == ("approximated", carried_out(conv_fprop_algo="gemm", conv_algo_rules=few))
    after = row("enable_small_channel", {"enable_small_channel": 1, "conv_algo_rules": "a: gemm"})
    assert after.assignments["native.convolution.cpu"].conv_algo_rules == (
        "a: fprop=gemm; dims=2 input=*x[1-4]x*x*: fprop=normal, dgrad=normal, wgrad=normal"
    )
    assert row("enable_small_channel", {"enable_small_channel": 0}).assignments == {}
    for device in ("cpu", "cuda"):
        taken = row("enable_small_channel", {"enable_small_channel": 1, **dict.fromkeys(ALGORITHMS, "normal")}, on=device)
        assert (taken.status, taken.assignments) == ("inert", {})


def test_few_channels_are_measured_on_cuda() -> None:
    few = {"conv_algo_rules": "dims=2 input=*x[1-4]x*x*: fprop=performance, dgrad=performance, wgrad=performance"}
    measured = carried_out("cuda", **few, conv_allow_tf32=True)
    ordered = carried_out("cuda", **few, conv_allow_tf32=True, deterministic=True)
    asked = {"enable_small_channel": 1, "tuning_file": "t.json"}
    check(
        [
            (
                "cuda",
                {"enable_small_channel": 1},
                {"enable_small_channel": ("approximated", measured, "measured to be faster")},
            ),
            (
                *("cuda", {"enable_small_channel": 1, "deterministic": "ON"}),
                {
                    "enable_small_channel": (
                        "approximated",
                        ordered,
                        "nothing is measured under deterministic=ON: the tuning file",
                    )
                },
            ),
            ("cuda", {"enable_small_channel": 0}, {"enable_small_channel": ("honoured", {}, "nothing is asked for")}),
            ("cuda", asked, {"tuning_file": ("honoured", {}, "part of the policy")}),
        ]
    )
    check([("cuda", {"enable_small_channel": 1}, {"enable_small_channel": ("refused", {}, "no cuDNN")})], cudnn="no cuDNN")


def test_memory_formats_are_inductors_to_change() -> None:
    for device in ("cpu", "cuda"):
        for value in (True, False):
            assigned = {"torch.inductor.layout_optimization": not value}
            expected = ("approximated", assigned, "inductor")
            check([(device, {"disable_format_transform": value}, {"disable_format_transform": expected})])


# --- details ----------------------------------------------------------------------------------------------------------


def test_an_error_bound_does_not_apply_to_what_is_named() -> None:
    for asking, status, reason in (
        ({"conv_fprop_algo": "gemm"}, "inert", "an algorithm that is named runs whatever its bound"),
        ({"conv_algo_rules": {"weight=8x8x3x3": "winograd"}}, "inert", "an algorithm that is named runs whatever its bound"),
        ({"conv_fprop_algo": "fft", "conv_algo_rules": "a: dgrad=algo_1"}, "inert", "an algorithm that is named runs"),
        (dict.fromkeys(ALGORITHMS, "fft"), "inert", "an algorithm that is named runs whatever its bound"),
        (
            {"conv_fprop_algo": "fft", "conv_dgrad_algo": "normal"},
            "approximated",
            "conv_fprop_algo=fft runs whatever its bound",
        ),
        ({"conv_fprop_algo": "fft", "conv_algo_rules": "a: dgrad=performance"}, "approximated", "conv_fprop_algo=fft runs"),
        ({"conv_fprop_algo": "fft", "thread_invariant": True}, "approximated", "conv_fprop_algo=fft runs whatever its bound"),
        ({"thread_invariant": True}, "honoured", "part of the policy"),
        (dict.fromkeys(ALGORITHMS, "normal"), "approximated", "PyTorch's own path"),
        ({"conv_algo_rules": "a: normal"}, "approximated", "PyTorch's own path"),
        ({"conv_fprop_algo": "performance"}, "approximated", "states no bound"),
        ({"conv_fprop_algo": "fft", "conv_dgrad_algo": "normal"}, "approximated", "PyTorch's own path"),
        ({"conv_fprop_algo": "normal", "thread_invariant": True}, "honoured", "part of the policy"),
    ):
        check([("cpu", {"conv_max_error": 1e-9, **asking}, {"conv_max_error": (status, {}, reason)})])


def test_tf32_is_inert_where_nothing_that_is_asked_for_can_take_it() -> None:
    fft, rule = {"conv_fprop_algo": "fft"}, {"conv_algo_rules": {"a": "gemm"}}
    for asking, who in (
        ({"conv_fprop_algo": "gemm"}, "conv_fprop_algo=gemm"),
        (rule, "fprop=gemm of conv_algo_rules"),
        (fft | rule, "conv_fprop_algo=fft, fprop=gemm of conv_algo_rules"),
    ):
        found = row("conv_allow_tf32", {"conv_allow_tf32": True, **asking})
        assert (found.status, found.reason) == ("inert", f"no algorithm that is asked for can round to TF32: {who}")
    found = row("conv_allow_tf32", {"conv_allow_tf32": True, "conv_fprop_algo": "normal", "allow_fp32_emulation": False})
    assert (found.status, "overridden by allow_fp32_emulation=False" in found.reason) == ("inert", True)
    for asking in ({"conv_fprop_algo": "implicit_gemm"}, {"thread_invariant": True}, {"conv_algo_rules": "a: algo_1"}):
        assert row("conv_allow_tf32", {"conv_allow_tf32": True, **asking}).status == "honoured", asking
    assert row("conv_allow_tf32", {"conv_allow_tf32": False, "conv_fprop_algo": "gemm"}).status == "honoured"


@pytest.mark.parametrize("name", ["implicit_gemm", "normal"])
def test_tf32_needs_a_matrix_unit(name: str) -> None:
    for value in (True, False):
        options = {"conv_allow_tf32": value, "conv_fprop_algo": name}
        assert msctx.explain(options, device="cpu").rows[-1].status == "honoured", "a plan of a machine that is not this one"
    found = row("conv_allow_tf32", {"conv_allow_tf32": True, "conv_fprop_algo": name}, matrix_unit=NO_UNIT)
    assert (found.status, found.reason) == ("inert", f"{NO_UNIT}, which alone rounds to TF32")


def test_whether_this_machine_has_a_matrix_unit_is_read_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa, obstacle in (("amx", ""), ("avx2", "MSCTX_ISA=avx2 has no matrix unit (AMX)")):
        monkeypatch.setenv(core.ISA_VARIABLE, isa)
        assert core.matrix_unit_obstacle() == obstacle
    monkeypatch.delenv(core.ISA_VARIABLE)
    for flags, obstacle in (("amx_bf16 amx_int8 amx_tile avx2", ""), ("avx2 fma", NO_UNIT), ("", "")):
        monkeypatch.setattr(environment_key, "cpu", lambda flags=flags: ("a processor", flags))
        assert core.matrix_unit_obstacle() == obstacle


@pytest.mark.parametrize(
    ("options", "unable", "able"),
    [
        ({"allow_fp32_emulation": False}, ["gemm", "fft", "direct", "reference"], ["winograd", "implicit_gemm", "normal"]),
        ({"frozen_weights": True}, ["gemm", "reference"], ["direct", "winograd", "implicit_gemm", "fft", "normal"]),
        ({"conv_workspace_limit": 0}, ["reference"], ["gemm", "direct", "implicit_gemm", "winograd", "performance"]),
    ],
)
def test_a_detail_is_inert_beside_algorithms_that_it_does_not_concern(
    options: Options, unable: list[str], able: list[str]
) -> None:
    (detail,) = options
    for name, status in [*((name, "inert") for name in unable), *((name, "honoured") for name in able)]:
        for asking in ({"conv_fprop_algo": name}, {"conv_algo_rules": f"a: fprop={name}"}):
            found = row(detail, {**options, **asking})
            assert found.status == status, (name, found)
            assert (f"fprop_algo={name}" in found.reason or f"fprop={name} of" in found.reason) is (status == "inert")
    some = {**options, "conv_algo_rules": f"a: fprop={unable[0]}; b: fprop={able[0]}"}
    assert row(detail, some).status == "honoured"
    without = row(detail, {**options, "conv_fprop_algo": "implicit_gemm"}, matrix_unit=NO_UNIT)
    if detail == "allow_fp32_emulation":  # nothing is computed from parts, as it asks
        assert without.status == "honoured"
    else:
        assert (without.status, without.reason.endswith(NO_UNIT)) == ("inert", True)


def test_no_weight_is_kept_for_its_own_gradient_and_casts_are_kept_beside_any_algorithm() -> None:
    for name in ("fft", "algo_1"):
        assert row("frozen_weights", {"frozen_weights": True, "conv_wgrad_algo": name}).status == "inert"
    casts = {"frozen_weights": True, "conv_fprop_algo": "gemm", "precision_mode": "force_fp16"}
    check([("cpu", casts, {"frozen_weights": ("honoured", {}, "casts")})])


def test_a_detail_without_an_algorithm_is_inert() -> None:
    for option, value in (
        ("fallback", "error"),
        ("conv_workspace_limit", 0),
        ("conv_max_error", 1e-6),
        ("frozen_weights", True),
    ):
        check([("cpu", {option: value}, {option: ("inert", {}, "no algorithm is asked for")})])
    named = {"tuning_file": "t.json", "conv_algo_rules": "performance_head: gemm"}
    assert row("tuning_file", named).status == "inert", "a module of that name asks for no measurements"
    assert row("tuning_file", named | {"conv_algo_rules": "head: fprop=performance"}).status == "honoured"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_falls_back_from_what_chooses_torch_too(device: str) -> None:
    """tests/native/test_fallback.py shows it: under both, what msctx cannot compute runs torch's path and raises nothing."""
    choosing = {"conv_fprop_algo": "normal", "conv_dgrad_algo": "performance", "fallback": "error"}
    check([(device, choosing, {"fallback": ("inert", {}, "nothing falls back")})])
    assert row("fallback", choosing | {"conv_algo_rules": "a: gemm"}, on=device).status == "honoured"
    assert row("fallback", {"thread_invariant": True, "fallback": "error"}).status == "honoured"


def test_details_of_what_does_not_come_about_are_inert() -> None:
    measured = {"conv_fprop_algo": "performance", "tuning_file": "t.json", "batch_invariant": True}
    check([("cpu", measured, {"tuning_file": ("inert", {}, "each batch would have an entry of its own")})])
    refused = {"frozen_weights": True, "precision_mode_v2": "mixed_hif8"}
    check([("cpu", refused, {"frozen_weights": ("inert", {}, "no algorithm is asked for")})])


def test_rules_ask_for_no_product_that_is_excluded() -> None:
    both = {"matmul_algo_rules": {"a": "fp16x3", "b": "strict"}, "conv_fprop_algo": "gemm"}
    rest = ConvPolicy(conv_fprop_algo="gemm", matmul_algo_rules="b: matmul=strict")
    for more, changed, why in (
        ({"allow_fp32_emulation": False}, {"allow_fp32_emulation": False}, "products in float32 alone"),
        (
            {"batch_invariant": True},
            {"batch_invariant": True, "thread_invariant": True, "torch_keeps_products": True},
            "other rows",
        ),
    ):
        given = {"native.convolution.cpu": replace(rest, **changed)} | INDUCTOR
        check([("cpu", both | more, {"matmul_algo_rules": ("approximated", given, why)})])
        alone = {"matmul_algo_rules": {"a": "fp16x3"}, **more}
        check([("cpu", alone, {"matmul_algo_rules": ("refused", {}, why)})])
    rounds = {"matmul_algo_rules": {"a": "tf32"}, "matmul_allow_tf32": False}
    check([("cpu", rounds, {"matmul_algo_rules": ("refused", {}, "it rounds")})])
    check(
        [("cpu", {"matmul_algo": "int8x6", "fallback": "error"}, {"fallback": ("inert", {}, "no call can run")})],
        matrix_unit="none",
    )


@pytest.mark.parametrize("asking", [{"fallback": "error"}, {"strict": True}])
@pytest.mark.parametrize("name", ["matmul_algo", "matmul_algo_rules"])
def test_a_product_that_no_call_can_run_is_refused_where_nothing_may_fall_back(name: str, asking: Options) -> None:
    """As a convolution is; of rules, each counts."""
    value = {"matmul_algo": "int8x6", "matmul_algo_rules": {"a": "int8x6", "b": "strict"}}[name]
    made = planned({name: value, "conv_fprop_algo": "gemm", **asking}, on="cpu", matrix_unit="none")
    assert [(r.option, r.status, r.reason) for r in made.failing] == [(name, "refused", "int8x6: none")]
    assert [r.option for r in made.unserved] == [name] * ("fallback" in asking)


def test_products_from_halves_on_an_npu_are_for_chips_without_float32() -> None:
    asked = {"matmul_algo": "fp16x3"}
    policy = {"native.convolution.ascend": ConvPolicy(matmul_algo="fp16x3")}
    by_halves = policy | {"torch.npu.matmul.cube_math_type": "USE_FP16", "torch.npu.jit_compile": False}
    by_unit = policy | {"torch.npu.matmul.cube_math_type": "KEEP_DTYPE"}
    halves = ("honoured", by_halves, "three products of float16 parts")
    for more in ({}, {"jit_compile": "false"}, {"batch_invariant": True}):
        check([("ascend", asked | more, {"matmul_algo": halves})], half_products=True)
    for value in ("true", "auto"):
        compiled = ("refused", {}, f"jit_compile={value} has CANN compile products")
        check([("ascend", asked | {"jit_compile": value}, {"matmul_algo": compiled})], half_products=True)
    emulation = {"matmul_algo": ("refused", {}, "float32 alone"), "allow_fp32_emulation": ("inert", {}, "no call can run")}
    check([("ascend", asked | {"allow_fp32_emulation": False}, emulation)], half_products=True)
    check(
        [("ascend", asked | {"jit_compile": "true"}, {"matmul_algo": ("honoured", by_unit, "computes float32 itself")})],
        half_products=False,
    )
    hf32 = {"matmul_allow_hf32": True}
    check([("ascend", asked | hf32, {"matmul_allow_hf32": ("inert", {}, "overridden by matmul_algo")})], half_products=False)
    unknown = ("honoured", by_unit, "on chips of the 910A class three products")
    detail = {"fallback": ("honoured", {}, "part of the policy"), "matmul_max_error": ("inert", {}, "no meaning")}
    check([("ascend", asked | {"fallback": "warn", "matmul_max_error": 1e-6}, {"matmul_algo": unknown} | detail)])
    check([("ascend", asked, {"matmul_algo": ("refused", {}, "no compiler")})], native="no compiler")
    check([("ascend", {"matmul_algo": "strict"}, {"matmul_algo": ("refused", {}, "float16 alone")})], half_products=True)
    strict = by_unit | {"native.convolution.ascend": ConvPolicy(matmul_algo="strict")}
    check([("ascend", {"matmul_algo": "strict"}, {"matmul_algo": ("approximated", strict, "order of additions")})])
    check([("ascend", {"matmul_algo": "bf16x6"}, {"matmul_algo": ("inert", {}, "fp16x3 and strict alone")})])
    rules = ConvPolicy(matmul_algo_rules="a: matmul=fp16x3")
    some = by_unit | {"native.convolution.ascend": rules}
    mixed = {"matmul_algo_rules": {"a": "fp16x3", "b": "int8x6"}}
    check([("ascend", mixed, {"matmul_algo_rules": ("approximated", some, "int8x6: an NPU has fp16x3")})])
    check([("ascend", {"fallback": "warn"}, {"fallback": ("inert", {}, "it goes with matmul_algo, matmul_algo_rules")})])


def test_a_limit_of_workspaces_is_of_convolutions() -> None:
    check(
        [("cpu", {"matmul_algo": "bf16x6", "conv_workspace_limit": 0}, {"conv_workspace_limit": ("inert", {}, "no algorithm")})]
    )
