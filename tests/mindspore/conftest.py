"""Every test begins and ends with nothing set; warnings about options without effect are no news here."""

import warnings

import pytest

import msctx
from msctx import devices
from msctx.errors import MsctxWarning


@pytest.fixture(autouse=True)
def nothing_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # into which some options write unless told otherwise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MsctxWarning)
        yield
    msctx.reset_context()


@pytest.fixture
def absent():
    return "Ascend" if "ascend" not in devices.here() else "GPU"
