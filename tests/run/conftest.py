"""Loads what sets environment variables when it is first loaded, so that no test does; an experiment in a folder of its own."""

import json
import textwrap
from typing import Any

import pytest
import torch._inductor.config  # noqa: F401 (the cache folder of inductor)


@pytest.fixture
def folder(tmp_path, request):
    """With the EXPERIMENT of the test's module, ``two.yaml``, and its ENTRY."""
    (tmp_path / "two.yaml").write_text(request.module.EXPERIMENT)
    (tmp_path / "entry.py").write_text(request.module.ENTRY)
    return tmp_path


@pytest.fixture
def job(tmp_path):
    """The file of an experiment whose entry is ``main`` of a source."""

    def job(source: str, context: str = "{deterministic: ON}", **args: Any) -> str:
        (tmp_path / "job.py").write_text(textwrap.dedent(source))
        file = tmp_path / "job.yaml"
        file.write_text(f"context: {context}\nexperiment: {{entry: job.py:main, args: {json.dumps(args)}}}\n")
        return str(file)

    return job
