"""An interpreter that has prepared itself and forks for each piece of code: to import torch anew takes seconds."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent


class Interpreter:
    """Runs *prepare* once. The code of each call continues from there, with its names, in a process of its own."""

    def __init__(self, prepare: str, variables: Mapping[str, str] | None = None) -> None:
        env = os.environ if variables is None else variables
        folders = [str(TESTS.parent), str(TESTS), env.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, __file__, prepare],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS.parent,
            env={**env, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        )

    def run(self, code: str, variables: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin
        assert self._process.stdout
        job = {"code": code, "variables": variables, "timeout": timeout}
        sys.audit("msctx.tests.forked")  # tests/tiers.py counts it
        print(json.dumps(job), file=self._process.stdin, flush=True)
        status, out, err = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(code, status, out, err)

    def close(self) -> None:
        self._process.communicate()


def _serve(prepare: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(sys.stderr):  # what a library prints when it is imported is no answer
        exec(prepare, names)
    gc.freeze()  # a process that ends would search all of it, and copy what it searches
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if not child:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.exit(_status_of(job, names))
            status, until = None, time.monotonic() + job["timeout"]
            while status is None:
                ended, found = os.waitpid(child, os.WNOHANG)
                if ended and not os.WIFSTOPPED(found):
                    status = os.waitstatus_to_exitcode(found)
                elif ended or time.monotonic() > until:  # one that is traced has stopped for a signal: nobody lets it go on
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.005)
            out.seek(0)
            err.seek(0)
            print(json.dumps([status, out.read(), err.read()]), flush=True)
    os._exit(0)  # there is nothing to take apart, which takes seconds with some libraries


def _status_of(job: dict[str, Any], names: dict[str, Any]) -> Any:
    os.environ.clear()
    os.environ.update(job["variables"])
    sys.stdin.close()
    try:
        exec(compile(job["code"], "<snippet>", "exec"), names)
    except SystemExit as end:
        return end.code
    except BaseException as error:
        sys.last_value = error  # as Python itself
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
