"""Draws the pictures of the documentation, as SVG: figures from bench/results, and the layers of msctx from its imports.

python docs/pictures.py
"""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PACKAGE = ROOT / "bench" / "results", ROOT / "msctx"
sys.path.append(str(ROOT / "bench"))

import figures  # noqa: E402 (found by the line above)
import summary  # noqa: E402

BLUE, ORANGE, GREY, INK = "#2563eb", "#ea580c", "#cbd5e1", "#1e293b"


def text(x: float, y: float, words: object, anchor: str = "start", size: int = 12, fill: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{escape(str(words))}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = GREY, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def dot(x: float, y: float, colour: str, is_filled: bool = True) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{colour}" stroke-width="1.5" fill="{colour if is_filled else "white"}"/>'


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">'
    back = f'<title>{escape(title)}</title>\n<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, back, *parts, "</svg>\n"])


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def ratios(
    marks: Iterable[float], left: float, right: float, top: float, bottom: float
) -> tuple[Callable[[float], float], list[str]]:
    """A logarithmic axis: where a ratio lies, and the lines and numbers of some."""
    shown = list(marks)
    low, high = math.log(shown[0]), math.log(shown[-1])

    def place(ratio: float) -> float:
        return left + (right - left) * (math.log(ratio) - low) / (high - low)

    parts = [line(place(m), top, place(m), bottom, INK if m == 1 else GREY) for m in shown]
    return place, parts + [text(place(m), bottom + 16, f"{m:g}", "middle") for m in shown]


def of_convolutions() -> str:
    """Groups of layers: the geometric mean, the range over processes, and whether the figure is proven."""
    result = stored("emerald-rapids-convolutions")
    groups = list(dict.fromkeys(row["what"] for row in result["rows"]))
    colours, left, top, step = {1: BLUE, 2: ORANGE}, 290, 46, 26
    bottom = top + step * len(groups)
    place, parts = ratios((0.5, 1, 2, 4, 8, 12), left, 760, top, bottom)
    parts += [text(12, 26, "PyTorch's time / msctx's time (above 1 msctx is faster)", size=14)]
    for n, (threads, colour) in enumerate(colours.items()):
        parts += [dot(580 + n * 90, 22, colour), text(590 + n * 90, 26, f"{threads} thread{'s' * (threads > 1)}")]
    for n, group in enumerate(groups):
        y = top + step * (n + 0.5)
        parts.append(text(left - 12, y + 4, group.replace("`", ""), "end"))
        for row in (row for row in result["rows"] if row["what"] == group):
            ratio, threads = row["ratio"], row["threads"]
            shown, at = figures.text(ratio, row["again"], row["processes"]), y + (threads - 1.5) * 9
            parts.append(line(place(ratio["low"]), at, place(ratio["high"]), at, colours[threads], 2))
            parts.append(dot(place(ratio["median"]), at, colours[threads], "**" in shown))
    parts.append(text(12, bottom + 38, f"{summary.described(result)}. Lines: range over processes.", size=11))
    parts.append(text(12, bottom + 54, "Hollow: the range contains 1, or PyTorch differs from itself by as much.", size=11))
    return picture(790, bottom + 66, "PyTorch's time over the time of msctx, by group of convolution layers", parts)


# --- The layers of msctx ----------------------------------------------------------------------------------------------


@cache
def units() -> dict[str, list[Path]]:
    """The files and packages right under msctx → their files."""
    found = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem != "__main__"}
    found |= {path.parent.name: sorted(path.parent.rglob("*.py")) for path in PACKAGE.glob("*/__init__.py")}
    return dict(sorted(found.items()))


def imported(path: Path) -> Iterator[str]:
    """The units that a file imports, anywhere in it; ``__init__``: names of msctx itself, whose own later imports are on demand."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if path == PACKAGE / "__init__.py" else ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for first, *rest in (name.split(".") for name in names):
            if first == "msctx":
                is_public = rest[:1] == ["context"] and len(rest) == 1  # the function of that name, not the module
                yield rest[0] if rest and rest[0] in units() and not is_public else "__init__"


@cache
def imports(unit: str) -> frozenset[str]:
    return frozenset(name for path in units()[unit] for name in imported(path)) - {unit}


@cache
def level(unit: str) -> int:
    """0 for what imports nothing of msctx; otherwise one more than the highest that it imports."""
    return 1 + max((level(name) for name in imports(unit)), default=-1)


def of_layers() -> str:
    rows: dict[int, list[str]] = {}
    for unit in units():
        rows.setdefault(level(unit), []).append(unit)
    width, height, parts = 900, 40, []
    for number in sorted(rows, reverse=True):
        gap, boxes = 10.0, [(unit, 8.2 * len(unit) + 22) for unit in rows[number]]
        x = (width - sum(w for _, w in boxes) - gap * (len(boxes) - 1)) / 2
        y = 44 + (max(rows) - number) * height
        for unit, wide in boxes:
            is_package, name = len(units()[unit]) > 1, "msctx" if unit == "__init__" else unit
            tree = ast.parse(units()[unit][0].read_text(encoding="utf-8"))
            help_ = (ast.get_docstring(tree) or "").partition("\n")[0]
            box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="28" rx="5" fill="{BLUE if is_package else "#e2e8f0"}"/>'
            label = text(x + wide / 2, y + 18, name, "middle", 13, "white" if is_package else INK)
            parts.append(f"<g><title>{escape(help_)}</title>{box}{label}</g>")
            x += wide + gap
    parts.append(text(12, 24, "Each box imports only from the rows below it. Blue: packages.", size=14))
    return picture(width, 44 + height * (max(rows) + 1), "The layers of msctx", parts)


PICTURES = {
    "convolutions": of_convolutions,
    "layers": of_layers,
}


def main() -> None:
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
