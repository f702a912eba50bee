"""One run of `msctx verify`, in a process of its own, step by step as its parent asks: `python -m msctx.verify.child FD`."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx.errors import EntryFailed, MsctxError
from msctx.run.config import Experiment, read
from msctx.verify.wire import Message, Wire


def main() -> None:
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    with suppress(EOFError, BrokenPipeError):  # nobody waits for us
        job = wire.receive()
        try:
            _run(job, wire)
        except MsctxError as error:
            wire.send({"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code})


def _run(job: dict[str, Any], wire: Wire) -> None:
    experiment = read(job["file"], job["words"], need_entry=True)
    from msctx.run.runner import prepare_environment

    prepare_environment(experiment)
    from msctx.native import core

    core.load()
    wire.ask({"ready": _surroundings(experiment)})
    tasks = {"digests": _digests, "replica": _digests, "detail": _detail, "compiled": _compiled, "times": _times}
    tasks[job["task"]["kind"]](experiment, job, wire)


def _digests(experiment: Experiment, job: dict[str, Any], wire: Wire) -> None:
    from msctx.native import core
    from msctx.observers import collector, modules
    from msctx.verify.reader import DigestReader
    from msctx.verify.replica import ReplicaReader

    def ended(**more: Any) -> None:
        answer = wire.ask({**reader.report, **more})
        while "go" not in answer:
            if "rows" in answer:
                answer = wire.ask({"rows": sorted(reader.rows, key=lambda row: row.order)})
            else:
                assert isinstance(reader, ReplicaReader)
                answer = wire.ask({"file": str(reader.save(answer["save"], Path(job["folder"])))})
        reader.forget()

    reader = {"digests": DigestReader, "replica": ReplicaReader}[job["task"]["kind"]](ended)
    collector.put("verify", reader)
    modules.name_unwatched(reader.meet)
    ending = _call(experiment, job["folder"])
    collector.flush()
    ended(ended=ending, lost=core.load().c.msctx_collect_dropped())


def _detail(experiment: Experiment, job: dict[str, Any], wire: Wire) -> None:
    from msctx.observers import collector, modules
    from msctx.verify.reader import DetailReader

    task = job["task"]
    wanted, *others = [tuple(call) for call in task["calls"]]

    def ended() -> None:
        if reader.is_there:
            lines = [reader.lines.get(call, "") for call in (wanted, *others)]
            wire.ask({"row": reader.row, "lines": lines, "generator": reader.generator})

    reader = DetailReader(ended, task["step"], wanted, others, Path(job["folder"]) / "tensors")
    reader.folder.mkdir(parents=True)
    collector.put("verify", reader)
    modules.name_unwatched(lambda model: None)
    _call(experiment, str(Path(job["folder"]) / "run"))
    collector.flush()
    ended()
    wire.send({"row": None, "lines": []})


def _compiled(experiment: Experiment, job: dict[str, Any], wire: Wire) -> None:
    from msctx.observers import steps
    from msctx.verify.compiled import Graphs

    graphs = Graphs()

    def ended(*_: Any, **more: Any) -> None:
        wire.ask({**graphs.report, **more})
        graphs.forget()

    with steps.counting(ended), graphs.captured():
        ending = _call(experiment, job["folder"])
    ended(ended=ending)


def _times(experiment: Experiment, job: dict[str, Any], wire: Wire) -> None:
    from msctx.observers import collector, modules
    from msctx.verify.candidates import put_readers

    def ended(**more: Any) -> None:
        wire.ask({**times.report, **more})
        times.forget()

    times, errors = put_readers(ended, Path(job["folder"]) / "errors")
    modules.name_unwatched(lambda model: None)
    ending = _call(experiment, str(Path(job["folder"]) / "run"))
    collector.flush()
    ended(ended=ending | ({"operator": errors.met[-1]} if errors.met else {}))


def _call(experiment: Experiment, folder: str) -> Message:
    """How the entry ended."""
    from msctx.run import ranks, run_experiment

    try:
        run_experiment(experiment, folder)
    except EntryFailed:
        mine = Path(folder) / (f"rank_{ranks.rank()}" if ranks.is_one_of_several() else "")
        result = json.loads((mine / "result.json").read_text(encoding="utf-8"))
        texts = {"error": result["error"], "reason": result.get("reason", result["error"])}
        return {"status": "failed", **{name: _without(mine, folder, text) for name, text in texts.items()}}
    return {"status": "completed"}


def _without(mine: Path, folder: str, text: str) -> str:
    """A text without the folder of this run, which is another one in each, and is gone afterwards."""
    return text.replace(f"; the run is recorded in {mine}", "").replace(folder, "RUN_DIR")


def _surroundings(experiment: Experiment) -> Message:
    """What a certificate holds beside the digests."""
    import torch

    from msctx.inspection import environment
    from msctx.native import core
    from msctx.run.record import plain
    from msctx.run.runner import config
    from msctx.verify.rows import digest

    found = environment()
    settings = config(experiment)
    arguments = {f"args.{name}": digest(value) for name, value in settings["experiment"]["args"].items()}  # they may be secret
    options = {name: plain(value) for name, value in settings["context"].items()}
    kept = ("python", "platform", "cpu", "cpu_count", "cpu_capability")
    machine = {name: found[name] for name in kept} | {"threads": torch.get_num_threads(), "isa": core.load().isa()}
    return {"settings": options | arguments, "versions": found["libraries"], "machine": machine}


if __name__ == "__main__":
    main()
