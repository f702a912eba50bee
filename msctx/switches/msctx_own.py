"""Switches of msctx's own parts: policies and memory of the native core, what observers show, where watched models keep their
tensors, how a session runs."""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from typing import Any

from msctx.graph import report
from msctx.native import (  # some only count what comes of a policy
    core,
    memory,
    policy_and_choices,
    precision_switch,
)
from msctx.switches.base import Switch, reading, slot, writing

# --- parts that the first value loads ---------------------------------------------------------------------------------


def _part(
    name: str, place: str, *of: str, unwritten: Any = None, verbs: tuple[str, str] = ("read", "write"), **more: Any
) -> Switch:
    """*place*: ``module:`` or ``module:object.`` in front of the functions that are called with *of*."""
    read, write = (place + verb for verb in verbs)
    return Switch(name, reading(read, unwritten, *of), writing(write, unwritten, *of), **more)


_turned = partial(_part, unwritten=False, verbs=("is_on", "turn"), scope="thread")


_reader = partial(slot, load=core.load)  # of what the native core collects
_FOUR = "msctx.observers.errors_overflow_recorder_watchdog:"

# --- sessions ---------------------------------------------------------------------------------------------------------


_session = threading.local()


def of_session(name: str) -> Any:
    """What ``run()`` of a session is to do in this thread; ``None``: nothing is requested."""
    return getattr(_session, name, None)


def _of_session(name: str) -> Switch:
    return Switch(name, partial(of_session, name), partial(setattr, _session, name), scope="thread")


# --- the native core -----------------------------------------------------------------------------------------------------


def _convolution(name: str) -> Switch:
    place = name.rpartition(".")[2]
    return Switch(
        name,
        partial(policy_and_choices.IN_FORCE.get, place),
        partial(policy_and_choices.write, place),
        load=policy_and_choices.LOAD[place],
    )


def _precision(name: str) -> Switch:
    device = name.rpartition(".")[2]
    return Switch(
        name,
        partial(precision_switch.read, device),
        partial(precision_switch.write, device),
        state=(partial(precision_switch.save, device), partial(precision_switch.load, device)),
        scope="thread",
        restore="between",
        load=core.load,
    )


SWITCHES = (
    _convolution("native.convolution.cpu"),
    _precision("native.precision.cpu"),
    _precision("native.precision.cuda"),
    _precision("native.precision.ascend"),
    # put back always: while another allocator is in force, there is a pool that does not show
    Switch(
        "native.memory_pool", memory.read_pool, memory.write_pool, state=(memory.read_pool, memory.write_pool), load=core.load
    ),
    Switch("native.memory_caps", memory.read_caps, memory.write_caps, load=core.load),
    _turned("models.saved_on_host", "msctx.memory.offload:", "activations"),
    _part("models.parameters", "msctx.memory.parameter_placement:PLACES."),
    _turned("models.copies_of_parameters", "msctx.memory.parameter_placement:", verbs=("copies", "copy_for_operators")),
    _part("models.weight_format", "msctx.memory.memory_format:FORMAT."),
    _part("models.recompute", "msctx.memory.recompute:RECOMPUTE.", unwritten=False),
    _part("models.gradients_postponed", "msctx.memory.ddp_and_fsdp_communication:POSTPONED.", unwritten=False),
    _part("models.gradients_bundled", "msctx.memory.ddp_and_fsdp_communication:BUNDLED.", unwritten=False),
    _part("models.gathered_ahead_forward", "msctx.memory.ddp_and_fsdp_communication:FORWARD."),
    _part("models.gathered_ahead_backward", "msctx.memory.ddp_and_fsdp_communication:BACKWARD."),
    _reader("observers.dump", "msctx.observers.dump:SLOT"),
    _reader("observers.overflow", _FOUR + "OVERFLOWS"),
    _reader("observers.errors", _FOUR + "ERRORS"),
    _reader("observers.recorder", _FOUR + "RECORDER", lambda: report.of_process().as_dicts()),
    _reader("observers.watchdog", _FOUR + "WATCHDOG"),
    _reader("observers.deterministic_except", "msctx.observers.deterministic_except:EXCEPTED"),
    slot("observers.print_file", "msctx.observers.printing:SLOT"),
    slot("observers.replicas", "msctx.observers.bprop_and_replica_checks:SLOT"),
    slot("observers.kernels", "msctx.observers.compile_trace:KERNELS_SLOT"),
    slot("observers.fusions", "msctx.observers.compile_trace:FUSIONS_SLOT"),
    slot(
        "observers.graph_files",
        "msctx.observers.compile_trace:GRAPHS_SLOT",
        blocked=lambda wanted: str(import_module("msctx.observers.compile_trace").obstacle(wanted)),
    ),
    _turned("observers.class_names", "msctx.observers.module_paths:CLASSES.", unwritten=True),
    _turned("observers.check_bprop", "msctx.observers.bprop_and_replica_checks:NODES."),
    _turned("observers.check_bprop_values", "msctx.observers.bprop_and_replica_checks:VALUES."),
    _part("torch.profiler", "msctx.observers.profiling:SLOT."),
    _of_session("session.graph_run_mode"),
    _of_session("session.iterations_per_loop"),
    _of_session("session.graph_max_parallel_model_num"),
    _of_session("session.low_precision"),
    _part("torch.dataloader.shared", "msctx.native.shared_batches:", verbs=("shared", "share"), scope="thread"),
)
OF_CUDA = (_convolution("native.convolution.cuda"),)
OF_ASCEND = (_convolution("native.convolution.ascend"),)
