"""runtime_num_threads, inter_op_parallel_num, flush_denormal: the host's threads, on each device."""

import importlib

import pytest
from plans import check, planned

from msctx.effects import base, threads
from msctx.options import DEVICES

THREADS, INTEROP, DENORMALS = {"torch.num_threads": 3}, {"torch.num_interop_threads": 3}, {"torch.flush_denormal": True}
KEPT = "torch's own number is kept"


def test_what_each_device_gets() -> None:
    check(
        [
            ("cpu", {"runtime_num_threads": 3}, {"runtime_num_threads": ("honoured", THREADS, "")}),
            ("cpu", {"inter_op_parallel_num": 3}, {"inter_op_parallel_num": ("honoured", INTEROP, "stays after a with-block")}),
            ("cpu", {"flush_denormal": True}, {"flush_denormal": ("approximated", DENORMALS, "keep theirs")}),
            *((d, {"runtime_num_threads": 0}, {"runtime_num_threads": ("honoured", {}, KEPT)}) for d in DEVICES),
            *((d, {"inter_op_parallel_num": 0}, {"inter_op_parallel_num": ("honoured", {}, KEPT)}) for d in DEVICES),
            *(
                case
                for d in ("cuda", "ascend")
                for case in (
                    (d, {"runtime_num_threads": 3}, {"runtime_num_threads": ("approximated", THREADS, "host's operators")}),
                    (d, {"inter_op_parallel_num": 3}, {"inter_op_parallel_num": ("approximated", INTEROP, "stays")}),
                    (d, {"flush_denormal": True}, {"flush_denormal": ("inert", {}, "no meaning")}),
                )
            ),
        ]
    )


def test_the_host_has_one_number_of_threads() -> None:
    options = {"runtime_num_threads": 1, "device_context.cpu.op_tuning.threads_num": 8}
    found = planned(options, on=("cpu", "cuda"))
    assert found.assignments == {"torch.num_threads": 8}
    (lost,) = [r for r in found.rows if r.device == "cuda"]
    assert lost.reason == "these are the host's threads, and device_context.cpu.op_tuning.threads_num=8 sets them"


def test_an_import_that_a_signal_interrupted_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python forgets the module; what it registered before the signal came is still there."""
    monkeypatch.setattr(base, "EFFECTS", dict(base.EFFECTS))
    importlib.reload(threads)
    with pytest.raises(AssertionError, match="two translations for seed"):
        base.effect("seed")(threads.flush_denormal)
