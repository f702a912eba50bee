"""Files of observers."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("option", ["enable_dump", "enable_dump_debug"])
@pytest.mark.parametrize("overflows", [False, True])
def test_nothing_of_msctx_stays_in_a_program_whose_options_nobody_leaves(option: str, overflows: bool, tmp_path: Path) -> None:
    program = f"import msctx, torch; msctx.set_context(session={{{option!r}: True, 'dump_path': {str(tmp_path)!r}}})"
    program += "; torch.ones(2) / torch.zeros(2)" * overflows
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert overflows == bool([*tmp_path.iterdir()])


def test_what_is_appended_is_whole_or_not_there(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from msctx.observers.files import append
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
append(sys.argv[1], b"whole,")
try:
    append(sys.argv[1], b"torn,torn")
except OSError as error:
    print(error.strerror)
"""
    path = tmp_path / "rows"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), path.read_bytes()) == ("No space left on device", b"whole,")
