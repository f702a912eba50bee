"""Switches of the observers: they read what was written, and give back what was found."""

from pathlib import Path

from msctx.switches import SWITCHES


def test_the_file_around_goes_on_after_the_one_inside(tmp_path: Path) -> None:
    switch = SWITCHES["observers.print_file"]
    outer, inner = str(tmp_path / "outer"), str(tmp_path / "inner")
    switch.write(outer)
    state = switch.take()
    switch.write(inner)
    assert switch.read() == inner
    switch.put_back(state)
    assert switch.read() == outer
    switch.put_back(None)
    assert switch.read() is None
    assert not [*tmp_path.iterdir()], "nothing was printed"
