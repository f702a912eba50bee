"""Runs a command in the process of the test."""

import pytest

from msctx.cli import main


@pytest.fixture
def msctx(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def msctx(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(argv))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(end.value.code or 0), out, err

    return msctx
