"""One run of `msctx verify`, in its own process: `python -m msctx.verify.child JOB FD` writes messages to a file descriptor."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from msctx.errors import EntryFailed, MsctxError
from msctx.observers import collector, modules
from msctx.run import run_experiment
from msctx.run.config import prepare_environment, read
from msctx.verify import compiled
from msctx.verify.rows import DetailReader, DigestReader
from msctx.verify.runs import Message, failed


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1) as pipe, suppress(BrokenPipeError):

        def send(message: Message) -> None:
            pipe.write(json.dumps(message, default=str) + "\n")

        try:
            send(_run(job, send))
        except MsctxError as error:
            send({"problem": str(error), "exit_code": error.exit_code})


def _run(job: Message, send: Callable[[Message], object]) -> Message:
    """The last message."""
    experiment = read(job["file"], job["words"], need_entry=True)
    prepare_environment(experiment)

    task, folder = job["task"], job["folder"]
    with compiled.compared(send) if "compiled" in task else nullcontext():
        if "compiled" not in task:
            modules.name_unwatched()
            collector.put("verify", DetailReader(send, **task, folder=Path(folder).parent) if task else DigestReader(send))
        try:
            run_experiment(experiment, folder)
            last: Message = {"does": "ends"}
        except EntryFailed as error:
            last = failed(str(error).replace(f"; the run is recorded in {folder}", "").replace(folder, "RUN_DIR"))
    collector.flush()
    return last


if __name__ == "__main__":
    main()
