"""Where a run sends what it logs, beside its own files: ``record: {sinks: [tensorboard, wandb, mlflow]}``."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from msctx.errors import Diagnostic, Mark, OptionError, named
from msctx.notices import warn

Parameters = Mapping[str, Any]
"""What a run was given: options by spelling, arguments of its entry as ``args.NAME``."""


class Sink(Protocol):
    """One place that rows of numbers go to. Made with the run directory, the name of the experiment, and its parameters."""

    def send(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self, status: str) -> None: ...


class TensorBoard:
    """Files of events in the run directory."""

    def __init__(self, folder: Path, name: str, parameters: Parameters) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))
        cells = {key: " ".join(str(value).split()).replace("|", "\\|") for key, value in parameters.items()}
        lines = [f"| {key} | {value} |" for key, value in cells.items()]
        self._writer.add_text("parameters", "\n".join(["| parameter | value |", "|---|---|", *lines]))

    def send(self, numbers: Mapping[str, float], step: int) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)

    def close(self, status: str) -> None:
        self._writer.close()


class Wandb:
    """A run of the project that is named like the experiment; its files are in the run directory."""

    def __init__(self, folder: Path, name: str, parameters: Parameters) -> None:
        import wandb

        settings = dict(parameters)
        self._run = wandb.init(project=name, name=folder.name, dir=str(folder), config=settings, reinit="create_new")

    def send(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=int(status != "completed"))


class Mlflow:
    """A run of the MLflow experiment that is named like ours; a client of its own, so that ``mlflow.log_…`` of the entry is free."""

    ENDS = {"completed": "FINISHED", "interrupted": "KILLED"}
    REFUSED = re.compile(r"[^\w\-./ :]")
    """Characters that MLflow takes in no name."""

    def __init__(self, folder: Path, name: str, parameters: Parameters) -> None:
        from mlflow import MlflowClient

        own = "MLFLOW_TRACKING_URI" not in os.environ
        allowed = _set("MLFLOW_ALLOW_FILE_STORE", "true") if own else nullcontext()  # else MLflow asks for a database
        with allowed, _set("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"):  # by default it waits for minutes for a server
            self._client = MlflowClient((folder / "mlruns").as_uri() if own else None)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
            for key, value in parameters.items():
                self._client.log_param(self._run, self.REFUSED.sub("_", key), value)

    def send(self, numbers: Mapping[str, float], step: int) -> None:
        for key, value in numbers.items():
            self._client.log_metric(self._run, self.REFUSED.sub("_", key), value, step=step)

    def close(self, status: str) -> None:
        self._client.set_terminated(self._run, self.ENDS.get(status, "FAILED"))


SINKS: dict[str, type[TensorBoard] | type[Wandb] | type[Mlflow]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}
"""The name in a file, which is that of the package and of our extra."""


def require(names: Collection[str], mark: Mark | None = None) -> None:
    """See to it that the packages of sinks are there.

    Args:
        mark: where the file names them.

    Raises:
        OptionError: those that are missing, with the command that installs them.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        command = f'pip install "msctx[{",".join(missing)}]"'
        text = f"{', '.join(missing)}: not installed; install with {command}"
        raise OptionError([Diagnostic("record.sinks", text, mark=mark)])


class Sinks:
    """The sinks of a run. One that fails is left out, with a warning; the run goes on."""

    def __init__(self, names: Collection[str], folder: Path, name: str, parameters: Parameters) -> None:
        self._open: dict[str, Sink] = {}
        self._failed: dict[str, Sink] = {}
        self._step = 0
        for sink in names:
            if (made := self._try(sink, SINKS[sink], folder, name, parameters)) is not None:
                self._open[sink] = made

    def send(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a row. Its step is ``step``, if that is a whole number, else one more than that of the row before."""
        if not self._open:
            return
        numbers = {key: found for key, value in row.items() if (found := _number(value)) is not None}
        step = numbers.get("step", math.nan)
        self._step = int(step) if step.is_integer() else self._step + 1
        for sink, to in [*self._open.items()]:
            self._try(sink, to.send, numbers, self._step)

    def close(self, result: Mapping[str, Any]) -> None:
        """Send the result as a last row, and end."""
        self.send({f"result/{key}": value for key, value in result.items()})
        for sink, to in [*self._open.items(), *self._failed.items()]:
            self._try(sink, to.close, str(result["status"]))

    def _try(self, sink: str, action: Callable[..., Any], *args: Any) -> Any:
        numbers = random.getstate()  # MLflow draws some, which would be missing in the entry
        try:
            return action(*args)
        except Exception as error:  # a library, a disk or a server: nothing of that is worth a training
            if (failed := self._open.pop(sink, None)) is not None:
                self._failed[sink] = failed
            text = f"record.sinks: {sink} failed and is left out; the run continues: {named(error)}"
            warn("record.sinks", sink, text)
        finally:
            random.setstate(numbers)


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    """Set an environment variable that the user has not set."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


def _number(value: Any) -> float | None:
    """A number, or a tensor of one; ``None`` for all else."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
