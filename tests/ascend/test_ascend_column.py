"""Each row of the Ascend column has a case at the boundary of CANN, or docs/reference/ascend.md has the reason why none is there."""

import re

import machine

from msctx.options import OPTIONS
from msctx.plan import DONE
from msctx.reference import on_device

PAGE = machine.ROOT / "docs/reference/ascend.md"


def _applied() -> set[str]:
    return {option.name for option in OPTIONS.values() if on_device(option, "ascend").status in DONE}


def _set_in_cases() -> set[str]:
    """The options that a case sets, by their last word: ``dump_path=…``, ``"dump_path": …``."""
    cases = [path for path in (machine.ROOT / "tests/ascend").glob("test_*.py") if path.name != "test_ascend_column.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in cases)
    return {name for name in OPTIONS if re.search(rf"\b{name.rpartition('.')[2]}(?:=|\"+: )(?!=)", text)}


def _without_a_case() -> list[str]:
    """The names in the first column of the page's table."""
    section = PAGE.read_text(encoding="utf-8").partition("## Without a case at the boundary\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_each_option_has_a_case_or_a_reason():
    reasons = _without_a_case()
    assert len(reasons) == len(set(reasons))
    assert _applied() - _set_in_cases() == set(reasons)
