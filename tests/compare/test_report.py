"""report.html: one page with its picture, which requests nothing from a network; texts of files stay texts."""

import re
import sys
from dataclasses import replace

import pytest
from comparisons import SMALL, cell, made, row

from msctx.compare import report
from msctx.compare.result_and_recommendation import result_of

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def found(tmp_path):
    of = made(tmp_path, SMALL + "axes: {conv_fprop_algo: [gemm, winograd]}", command=f"msctx compare '{EVIL}'")
    first, second = (point.name for point in of.points)
    cells = [cell(first, 1.4, workspace=2**20), cell(second, reason=EVIL)]
    rows = [row(name, cells, 1, 5.0) for name in ("first", EVIL, "</script>")]
    rows.append(row("failed", [], baseline={}, reason=EVIL))
    return result_of(replace(of, layers=None), rows, {"cpu": EVIL}, "interrupted")


def test_the_page_asks_for_nothing_from_a_network_and_escapes_what_it_is_given(found, monkeypatch):
    text = report.page(found)
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", outside) == []
    assert re.findall(r"<script[^>]*\bsrc=", text) == []
    assert "<link" not in outside
    assert EVIL not in text
    assert "Partial: interrupted." in outside
    assert 'id="picture"' in outside
    assert text.count("<tr class=") == 6
    monkeypatch.setitem(sys.modules, "plotly.io", None)
    text = report.page(found)
    assert "pip install plotly" in text, "the tables are there all the same"
    assert text.count("<tr class=") == 6
