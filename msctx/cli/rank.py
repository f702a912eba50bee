"""One rank of `msctx run FILE --nproc N`, started by torchrun's agent with its plan in MSCTX_PLAN.

msctx.pth leaves it alone: the run lays the plan under the program itself, after it has looked at what is there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys

import typer

from msctx.errors import MsctxError

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Run it; the launching process reports what fails."""
    from msctx.cli.run import run_here
    from msctx.context import agreement
    from msctx.context.base import make_ready, plan_here
    from msctx.run import ending, launch

    if sys.platform == "linux":  # a launching process that is killed cannot end its ranks
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    ending.last_word(launch.report)
    if (file := launch.fault_file(os.environ)) and not faulthandler.is_enabled():
        faulthandler.enable(file.open("w"))  # when it was written is when the rank ended
    try:
        experiment, out, as_json = launch.handed(os.environ)
        settings = experiment.settings
        make_ready(settings)
        agreement.check_launched(plan_here(settings))
        run_here(experiment, out, as_json)
    except MsctxError as error:
        launch.report(error)
        sys.exit(error.exit_code)
    except typer.Exit as end:  # after Ctrl-C, which the record shows
        sys.exit(end.exit_code)
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            launch.report(error)
        raise


if __name__ == "__main__":
    main()
