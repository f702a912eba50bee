"""Loads what sets environment variables when it is first loaded, so that no test does; an experiment in a folder of its own."""

from pathlib import Path

import pytest
import torch._inductor.config  # noqa: F401 (the cache folder of inductor)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """With the EXPERIMENT of the test's module, ``two.yaml``, and its ENTRY."""
    (tmp_path / "two.yaml").write_text(request.module.EXPERIMENT)
    (tmp_path / "entry.py").write_text(request.module.ENTRY)
    return tmp_path
