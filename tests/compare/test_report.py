"""report.html in a real browser: it renders, sorts, filters and complains of nothing; texts of files stay texts."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from comparisons import SMALL, cell, made, result, row

from msctx.compare import report
from msctx.compare.result import Result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
EVIL = "<img src=x onerror=alert(1)>"
DIRECTIONS = ("fprop", "dgrad")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Result:
    of = made(
        tmp_path_factory.mktemp("compared"),
        SMALL + "axes: {conv_fprop_algo: [gemm, winograd], deterministic: [OFF, ON]}",
        command=f"msctx compare '{EVIL}'",
    )
    rows = []
    for number, (name, direction) in enumerate((n, d) for n in ("first", EVIL, "</script>") for d in DIRECTIONS):
        cells = [
            cell(point.name, 0.4 * (place + 1) + 0.01 * number, 10.0**-place, noisy=place == 2, workspace=2**20)
            for place, point in enumerate(of.points)
        ]
        cells[3] = cell(of.points[3].name, reason=EVIL)
        rows.append(row(name, cells, 1, 5.0 + number, direction, problem="1x4x12x12 * 8x4x3x3"))
    rows.append(row("failed", [], baseline={}, reason=EVIL))
    environment = {"cpu": EVIL, "devices": {"cpu": 1}}
    return result(replace(of, layers=None), *rows, environment=environment, partial="interrupted")


@pytest.fixture(scope="module")
def opened(found: Result, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[str]]]:
    """The report opened from disk, which takes seconds; errors and warnings of the console, and requests to a network."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian's package is chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, told = browser.new_page(), []
        page.on("console", lambda message: told.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(f"a script ran: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else told.append(request.url)
        )
        path = tmp_path_factory.mktemp("report") / "report.html"
        path.write_text(report.page(found), encoding="utf-8")
        page.goto(path.as_uri())
        yield page, told
        browser.close()


@pytest.fixture
def page(opened: tuple[Any, list[str]]) -> Iterator[Any]:
    """One for all tests: each leaves it as it was, or changes what those before it look at."""
    page, told = opened
    yield page
    assert told == []


def column(page: Any, number: int) -> list[str]:
    return page.eval_on_selector_all(  # type: ignore[no-any-return]
        "#cells tbody tr:not([hidden])", f"rows => rows.map(row => row.cells[{number}].dataset.value)"
    )


def test_it_renders(page: Any) -> None:
    assert page.title() == "mine: msctx compare"
    assert page.locator("#cells tbody tr").count() == 25
    page.wait_for_selector("#heat .main-svg")
    for chart in ("heat", "scatter", "bars", "cost"):
        assert page.locator(f"#{chart} .main-svg").count() >= 1, chart
        box = page.locator(f"#{chart}").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100
    assert page.locator("#heat .heatmaplayer image").count() == 1
    assert page.locator("#scatter path.point").count() == 18
    assert page.locator("#bars .bars path").count() == 12
    assert "Partial: interrupted." in page.locator(".warning").first.inner_text()


def test_texts_stay_texts(page: Any) -> None:
    assert page.locator("img").count() == 0
    assert EVIL in page.inner_text("#command")
    assert EVIL in column(page, 0)
    assert EVIL in page.inner_text("#cells tbody tr:nth-child(4) td:nth-child(12)")


def test_it_sorts(page: Any) -> None:
    page.click("#cells th:nth-child(5) button")
    found = [float(value) for value in column(page, 4) if value]
    assert found == sorted(found)
    page.click("#cells th:nth-child(5) button")
    values = column(page, 4)
    found = [float(value) for value in values if value]
    assert found == sorted(found, reverse=True)
    assert values[len(found) :] == [""] * (25 - len(found)), "what was not measured comes last"
    assert page.locator("#cells th:nth-child(5)").get_attribute("aria-sort") == "descending"
    page.click("#cells th:nth-child(1) button")
    assert column(page, 0) == sorted(column(page, 0), key=str.casefold)


def test_it_filters(page: Any) -> None:
    page.fill("#filter", "FIRST gemm deterministic=off")
    assert column(page, 2) == ["conv_fprop_algo=gemm, deterministic=OFF"] * 2
    assert page.inner_text("#shown") == "2 of 25"
    page.fill("#filter", "nothing like it")
    assert column(page, 0) == []
    page.fill("#filter", "")
    page.check("#timed")
    assert page.inner_text("#shown") == "18 of 25"
    page.uncheck("#timed")


def test_light_and_dark_and_a_phone(page: Any) -> None:
    def colours() -> list[str]:
        return page.evaluate("['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])")  # type: ignore[no-any-return]

    page.emulate_media(color_scheme="light")
    light = colours()
    page.emulate_media(color_scheme="dark")
    assert colours() == ["rgb(20, 23, 27)", "rgb(230, 233, 237)"] != light
    page.wait_for_function("getComputedStyle(document.querySelector('#heat .ytick text')).fill === 'rgb(230, 233, 237)'")
    page.set_viewport_size({"width": 380, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 380")
    assert page.locator("#recommended").bounding_box()["width"] <= 380


def test_the_page_asks_for_nothing_from_a_network_and_escapes_what_it_is_given(
    found: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = report.page(found)
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", outside) == []
    assert "<link" not in outside
    assert EVIL not in text
    assert "Partial: interrupted." in outside
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    figures = json.loads(data)
    assert {*figures} == {"heat", "scatter", "bars", "cost"}
    assert len(figures["heat"]["data"][0]["y"]) == 6
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    text = report.page(found)
    assert "pip install 'msctx[report]'" in text, "the tables are there all the same"
    assert text.count("<tr class=") == 25
    assert "Plotly.newPlot" not in text
