"""`msctx run FILE --nproc N`: torchrun's agent, whose ranks run one plan, made here; ranks.json shows what became of each."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from msctx.context import agreement
from msctx.context.base import plan_here
from msctx.errors import Diagnostic, EntryFailed, FileError, Mark, MsctxError, OptionError, named, text_of
from msctx.options import Layer, Settings, carried
from msctx.options.layers import flatten
from msctx.run import scratch
from msctx.run.config import Experiment
from msctx.run.record import Record

RANK = "msctx.cli.rank"
"""What each rank runs."""


PLACE = "HOST:PORT of one of the nodes, the same on all"


@dataclass(frozen=True)
class Launch:
    """How many processes, and where.

    Attributes:
        nproc: processes on this node.
        nnodes: nodes, or ``MIN:MAX`` of them.
        rendezvous: ``HOST:PORT`` of the node at which they find each other; with one node, none is needed.
        run_id: the same on all nodes, another for each job that uses the same rendezvous.
        restarts: how often a node starts its ranks anew, and with them all others, after one of its own has failed.
    """

    nproc: int
    nnodes: str = "1"
    rendezvous: str = ""
    run_id: str = ""
    restarts: int = 0

    @property
    def nodes(self) -> tuple[int, int]:
        """The least and the most of them.

        Raises:
            OptionError: with every problem.
        """
        least, _, most = self.nnodes.partition(":")
        problems = []
        if not (least.isdecimal() and (most or least).isdecimal() and 0 < int(least) <= int(most or least)):
            problems.append(Diagnostic("--nnodes", f"{self.nnodes!r} is not a number of nodes", "command line", "2, or 2:4"))
        elif int(most or least) > 1 and not self.rendezvous:
            text = "is missing: several nodes must find each other"
            problems.append(Diagnostic("--rdzv", text, "command line", PLACE))
        port = self.rendezvous.rpartition(":")[2]
        if self.rendezvous and not (port.isdecimal() and int(port) < 2**16):
            problems.append(Diagnostic("--rdzv", f"{self.rendezvous!r} names no port", "command line", PLACE))
        if not re.fullmatch(r"[\w.-]*", self.run_id, re.ASCII):
            text = f"{self.run_id!r} cannot be the name of a folder"
            problems.append(Diagnostic("--run-id", text, "command line", "letters, digits, '.', '_' and '-'"))
        if problems:
            raise OptionError(problems)
        return int(least), int(most or least)


def launch(experiment: Experiment, how: Launch, out: str | None, as_json: bool) -> dict[str, Any]:
    """Run the ranks of this node to their end; returns what ranks.json holds.

    Args:
        out: the run directory; with several nodes one that all of them see. Default: a new one under ``record.dir``.

    Raises:
        EntryFailed: a rank failed; it names the one that did so first, with its own message.
        KeyboardInterrupt: Ctrl-C; each rank has ended its record.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError, rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    least, most = how.nodes
    if most > 1 and out is None:
        raise OptionError([Diagnostic("--out", "is missing: name a folder that all nodes see", "command line")])
    _share_processors(how.nproc)
    rendezvous_handler_registry.register("msctx", _rendezvous)
    with (
        contextlib.ExitStack() as ending,
        scratch.folder("msctx-run-") as own,
        _quiet(),
        _new_stores(how.restarts > 0 or most > 1),
    ):
        if most == 1:
            record = Record.create(out, experiment.record_dir, experiment.name)
            ending.callback(record.discard)  # ranks that cannot begin, such as by a mistake in the file, record nothing
            out = str(record.folder)
        (seen := own / "folders").touch()
        os.environ[carried.VARIABLE] = _plan(experiment, out, as_json, seen)
        config = LaunchConfig(
            min_nodes=least,
            max_nodes=most,
            nproc_per_node=how.nproc,
            run_id=how.run_id or "msctx",
            rdzv_backend="msctx",
            rdzv_endpoint=how.rendezvous or "localhost:0",
            max_restarts=how.restarts,
            logs_specs=DefaultLogsSpecs(log_dir=str(own)),
        )
        try:
            with _noting_failures(seen, own):
                launch_agent(config, sys.executable, ["-m", RANK])
        except ChildFailedError as failed:
            failure: EntryFailed | None = _first(failed.failures, own)
        except (RendezvousError, DistError) as lost:
            text = f"a node that is needed has ended, or does not answer at {how.rendezvous} ({named(lost)})"
            failure = EntryFailed(f"{text}; what became of the ranks is in {out}")
        except SignalException as signalled:
            if signalled.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + signalled.sigval) from None
        else:
            failure = None
        finally:
            del os.environ[carried.VARIABLE]
            found = _gathered(seen)
    if failure is not None:
        raise failure
    return found


def _plan(experiment: Experiment, out: str | None, as_json: bool, seen: Path) -> str:
    mine = {
        "file": str(experiment.file.absolute()) if experiment.file else None,
        "name": experiment.name,
        "entry": experiment.entry,
        "entry_mark": experiment.entry_mark and astuple(experiment.entry_mark),
        "args": dict(experiment.args),
        "record_dir": str(Path(experiment.record_dir).absolute()),
    }
    layer = flatten(experiment.levels)
    plan = agreement.handed(plan_here(Settings([layer])))
    more = {"experiment": mine, "out": out, "json": as_json, "seen": str(seen), agreement.HANDED: plan}
    return carried.pack(layer, **more)


def _rendezvous(parameters: Any) -> Any:
    """Torch's, after which what the ranks are handed also holds how often all of them were started before, a store that they have in
    common before there is a process group: that of the agents, under a prefix for this start; and the plan of the node that came
    first.

    TORCHELASTIC_RESTART_COUNT does not: each agent counts how often ranks of its own node have failed.
    """
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    parameters.backend = "c10d"
    handler: Any = rendezvous_handler_registry.create_handler(parameters)
    _by_own_clock(handler._state_holder)
    join = handler.next_rendezvous

    def next_rendezvous() -> Any:
        found = join()
        store: Any = found.store  # of this start alone; that below it is the same for all
        below = store.underlying_store
        mine = json.loads(os.environ[carried.VARIABLE])
        if found.rank == 0:
            store.set("msctx/restart", str(below.add(f"msctx/starts/{parameters.run_id}", 1) - 1))
        restart = int(store.get("msctx/restart"))
        shared = [below.host, below.port, f"msctx/ranks/{parameters.run_id}/{restart}"]
        plan = below.compare_set(f"msctx/plan/{parameters.run_id}", "", mine[agreement.HANDED]).decode()
        mine |= {"restart": restart, "store": shared, agreement.HANDED: plan}
        os.environ[carried.VARIABLE] = json.dumps(mine, separators=(",", ":"))
        return found

    handler.next_rendezvous = next_rendezvous
    return handler


def _by_own_clock(holder: Any) -> None:
    """A node has ended when its heartbeat no longer changes. Torch compares the node's clock with its own, which may differ."""
    found, seen = holder._sanitize, dict[Any, tuple[datetime, float]]()

    def sanitize() -> None:
        written: dict[Any, datetime] = holder.state.last_heartbeats
        for node, beat in written.items():
            if node not in seen or seen[node][0] != beat:
                seen[node] = beat, time.monotonic()
        now = datetime.now(timezone.utc)
        holder.state.last_heartbeats = {node: now - timedelta(seconds=time.monotonic() - seen[node][1]) for node in written}
        found()
        holder.state.last_heartbeats = {node: written[node] for node in holder.state.last_heartbeats}

    holder._sanitize = sanitize


def handed(environment: Mapping[str, str]) -> tuple[Experiment, str | None, bool]:
    """What a rank was handed: its experiment, the run directory, and whether it reports in JSON."""
    found = carried.read(environment)
    mine: dict[str, Any] = found["experiment"]
    own: dict[str, Any] = {"file": Path(mine["file"]) if mine["file"] else None}
    own["entry_mark"] = Mark(*mine["entry_mark"]) if mine["entry_mark"] else None
    layer: Layer = carried.layer_of(environment)
    return Experiment(levels={"command line": layer}, **{**mine, **own}), found["out"], found["json"]


def _share_processors(count: int) -> None:
    """Each rank takes its part of the processors, where nobody has decided it: together they would take them *count* times."""
    if "OMP_NUM_THREADS" not in os.environ:
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ["OMP_NUM_THREADS"] = str(max(1, there // count))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The agent writes of each failed rank; we report the first one."""
    logger = logging.getLogger("torch.distributed.elastic")
    found = logger.level
    if "TORCH_LOGS" not in os.environ:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(found)


@contextlib.contextmanager
def _new_stores(may_restart: bool) -> Iterator[None]:
    """A restart has a store of its own: in the agent's, ranks would find the addresses of those that have ended.

    A node that takes the place of another one would not find the agent's.
    """
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    found = os.environ.get(name)
    if may_restart:
        os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if found is not None:
            os.environ[name] = found


# --- what became of the ranks -----------------------------------------------------------------------------------------


_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_was_left = False
"""Word of why this rank ends: what comes after the first is no news."""


def report(error: BaseException) -> None:
    """In a rank: leave word of why it ends, where the agent looks for it; all at once, for the agent may end it meanwhile."""
    global _was_left
    if (file := os.environ.get(_ERROR_FILE)) and not _was_left:
        _was_left = True
        more = {"timestamp": str(int(time.time())), "exit_code": getattr(error, "exit_code", 1)}
        more["is_in_file"] = getattr(error, "is_in_file", False)
        text = text_of(error) if isinstance(error, MsctxError) else named(error)
        with contextlib.suppress(OSError):
            (part := Path(f"{file}.part")).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}))
            part.replace(file)


def fault_file(environment: Mapping[str, str]) -> Path | None:
    """Beside the agent's file of a rank: what Python writes when a signal such as SIGABRT ends it."""
    return Path(file).with_name(FAULT) if (file := environment.get(_ERROR_FILE)) else None


FAULT = "fault.txt"


class RankFailed(EntryFailed):
    """A rank failed; the exit code is its own."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""What ends a rank by itself; SIGABRT is how NCCL ends one that waits for another, SIGTERM how the agent does."""


PATIENCE = 25
"""Seconds that torch's agent waits at least before it kills a rank that does not end."""


def _first(failures: Mapping[int, Any], own: Path) -> RankFailed:
    """By when the ranks left word: the file system's clock is the same for all, which a program may see to be untrue of its own.

    Torch's moments are whole seconds, in which the others have failed, too: for the first one was gone.

    *own*: the agent's folder.
    """

    words, began = _words(failures, own)

    def moment(rank: int, failure: Any) -> float:
        if (word := words[rank]) is not None:
            return word
        # it left no word: os._exit, a library's exit()
        by_itself = failure.exitcode > 0 or (-failure.exitcode in CRASHES and not _is_ended_by_agent(failure, began))
        return 0.0 if by_itself else float(failure.timestamp + 1)

    rank, failure = min(failures.items(), key=lambda one: moment(*one))
    left = _left_by(failure)
    others = f", {len(failures) - 1} more after it" if len(failures) > 1 else ""
    blamed = "" if left.get("is_in_file") else f"rank {rank} failed first{others}: "
    return RankFailed(f"{blamed}{_why(failure)}", left.get("exit_code", EntryFailed.exit_code))


def _words(failures: Mapping[int, Any], own: Path) -> tuple[dict[int, float | None], float]:
    """When each rank left word, and when the first of them failed."""
    words = {rank: _written(Path(one.error_file)) or _fault(own, one.local_rank) for rank, one in failures.items()}
    return words, min((words[rank] or float(one.timestamp) for rank, one in failures.items()), default=0.0)


def _is_ended_by_agent(failure: Any, began: float) -> bool:
    """By SIGTERM; the agent kills those that do not end by it half a minute later. *began*: when the first of the ranks failed."""
    was_killed = failure.exitcode == -signal.SIGKILL and failure.timestamp >= began + PATIENCE
    return was_killed or bool(failure.exitcode == -signal.SIGTERM)


def _written(file: Path) -> float | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime if found.st_size else None


def _fault(own: Path, local_rank: int) -> float | None:
    """When a signal such as SIGABRT ended the last process of that number."""
    attempts = sorted(own.glob(f"*/attempt_*/{local_rank}/{FAULT}"), key=lambda file: int(file.parts[-3].partition("_")[2]))
    return _written(attempts[-1]) if attempts else None


def _left_by(failure: Any) -> dict[str, Any]:
    """What :func:`report` has left of it, or torch's own `record`: its message, and what is known beside it."""
    message = failure.error_file_data.get("message")
    if not isinstance(message, dict):
        return {}
    return {**message.get("extraInfo", {}), "message": message.get("message", "")}


def _why(failure: Any) -> str:
    left = _left_by(failure)
    if left:  # before the signal: the agent may have ended it after it had failed
        return str(left.get("py_callstack") or left["message"])
    if failure.exitcode < 0:
        return f"signal {-failure.exitcode} ({failure.signal_name()}) ended it"
    return f"it ended with exit code {failure.exitcode}"


@contextlib.contextmanager
def _noting_failures(seen: Path, own: Path) -> Iterator[None]:
    """Ranks that were killed cannot write down why they have failed. The agent knows, until it starts all anew.

    *seen*: the folders that ranks have made; *own*: the agent's.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    found = LocalElasticAgent._monitor_workers

    def monitor(agent: LocalElasticAgent, group: Any) -> Any:
        result = found(agent, group)
        folders = {_order(folder): folder for folder in _folders(seen)} if result.failures else {}
        _, began = _words(result.failures, own)
        for rank, failure in result.failures.items():
            folder = folders.get((carried.read(os.environ)["restart"], rank))
            by_agent = _is_ended_by_agent(failure, began)
            if folder is not None and ((ended := _result(folder))["status"] != "completed" or not by_agent):
                known = {"reason": _why(failure).strip().rpartition("\n")[2], **ended}
                if known["status"] in (UNKNOWN, "completed"):  # it may have failed after it was done
                    known["status"] = "interrupted" if by_agent else "failed"
                with contextlib.suppress(FileError):
                    Record(folder).json("result.json", known)
        return result

    LocalElasticAgent._monitor_workers = monitor  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalElasticAgent._monitor_workers = found  # type: ignore[method-assign]


UNKNOWN = "unknown"
"""The status of a rank that has left none, and whose agent has not reported how it ended."""


def _folders(seen: Path) -> list[Path]:
    return [Path(line) for line in seen.read_text(encoding="utf-8").splitlines()]


def _result(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it is not at its end, or ended without a word
        found = {"status": UNKNOWN}
    return found


def _gathered(seen: Path) -> dict[str, Any]:
    """Write ranks.json beside the folders of the ranks: a row for each, of all restarts."""
    if not (own := _folders(seen)):
        return {"run_dir": None, "ranks": []}
    top = own[0].parent.parent if own[0].parent.name.startswith("restart_") else own[0].parent
    folders = sorted({*top.glob("rank_*"), *top.glob("restart_*/rank_*")}, key=_order)
    found = {"run_dir": str(top), "ranks": [_row(folder, top) for folder in folders]}
    Record(top).json("ranks.json", found)
    return found


def _order(folder: Path) -> tuple[int, int]:
    restart = folder.parent.name.removeprefix("restart_")
    return int(restart) if restart.isdecimal() else 0, int(folder.name.removeprefix("rank_"))


def _row(folder: Path, top: Path) -> dict[str, Any]:
    restart, rank = _order(folder)
    result = _result(folder)
    shown: dict[str, Any] = {key: result[key] for key in ("status", "reason", "seconds", "host", "plan") if key in result}
    return {"rank": rank, "restart": restart, "folder": str(folder.relative_to(top)), **shown}
