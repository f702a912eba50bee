"""thread_invariant and batch_invariant: the policy for convolutions, and MKL's strict mode where it can still be had."""

from plans import check, rows

from msctx.effects.algorithms import INDUCTOR
from msctx.options.conv_policy import ConvPolicy

STRICT = {"torch.mkl.cbwr": "AUTO,STRICT"}
THREADS = {"native.convolution.cpu": ConvPolicy(thread_invariant=True, torch_keeps_products=True)} | INDUCTOR
LATE = {"native.convolution.cpu": ConvPolicy(thread_invariant=True)} | INDUCTOR
BATCH = {
    "native.convolution.cpu": ConvPolicy(thread_invariant=True, batch_invariant=True, torch_keeps_products=True),
    **INDUCTOR,
}


def test_what_each_device_gets() -> None:
    check(
        [
            (
                "cpu",
                {"thread_invariant": True},
                {"thread_invariant": ("approximated", THREADS | STRICT, "stays after a with-block")},
            ),
            ("cpu", {"batch_invariant": True}, {"batch_invariant": ("approximated", BATCH | STRICT, "adds over the batch")}),
            ("cpu", {"thread_invariant": False}, {"thread_invariant": ("honoured", {}, "nothing is asked for")}),
            ("cpu", {"batch_invariant": False}, {"batch_invariant": ("honoured", {}, "nothing is asked for")}),
            ("cuda", {"batch_invariant": True}, {"batch_invariant": ("not_built", {}, "on CUDA")}),
            ("cuda", {"thread_invariant": True}, {"thread_invariant": ("inert", {}, "no meaning on cuda")}),
        ]
    )


def test_where_mkl_cannot_follow_the_reason_is_given() -> None:
    late = {"thread_invariant": ("approximated", LATE, "products run msctx's own kernels, since it is too late")}
    check([("cpu", {"thread_invariant": True}, late)], mkl="it is too late")
    check([("cpu", {"thread_invariant": True}, {"thread_invariant": ("refused", {}, "no compiler")})], native="no compiler")


def test_where_inductor_cannot_be_told_the_plan_says_so() -> None:
    in_graphs = {"mode": 0, "batch_invariant": True}
    assert rows(in_graphs)["batch_invariant"].assignments["torch.inductor.batch_invariant"] is True
    row = rows(in_graphs, inductor="torch has no such key")["batch_invariant"]
    assert "torch.inductor.batch_invariant" not in row.assignments
    assert row.reason.endswith("nor for other compiled code, since torch has no such key")
    assert "compiled" not in rows({"batch_invariant": True}, inductor="torch has no such key")["batch_invariant"].reason[-60:]


def test_named_algorithms_keep_their_place() -> None:
    for name in ("winograd", "fft", "gemm"):
        assert rows({"conv_fprop_algo": name, "batch_invariant": True})["conv_fprop_algo"].status == "honoured"
    found = rows({"conv_dgrad_algo": "performance", "batch_invariant": True})
    assert found["conv_dgrad_algo"].reason == "nothing is measured under batch_invariant=True: normal decides"
