"""Switches of the observers: they read what was written, and give back what was found."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msctx
from msctx.options.observation import GraphFiles
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


def test_names_of_classes_are_a_matter_of_the_thread() -> None:
    def ask() -> bool:
        with ThreadPoolExecutor(1) as pool:
            return bool(pool.submit(SWITCHES["observers.class_names"].read).result())

    assert SWITCHES["observers.class_names"].read() is True
    with msctx.context(reserve_class_name_in_scope=False):
        assert SWITCHES["observers.class_names"].read() is False
        assert ask() is True
    assert SWITCHES["observers.class_names"].read() is True


def test_the_folder_of_graphs_around_goes_on_after_the_one_inside(tmp_path: Path) -> None:
    switch = SWITCHES["observers.graph_files"]
    outer, inner = (GraphFiles(level, str(tmp_path / str(level))) for level in (1, 2))
    assert switch.blocked is not None
    assert not switch.blocked(outer), "its folder is made"
    switch.set(outer)
    try:
        state = switch.take()
        assert not switch.blocked(inner)
        switch.set(inner)
        assert switch.read() == inner
        assert switch.is_satisfied(inner)
        switch.put_back(state)
        assert switch.take() is state
    finally:
        switch.put_back(None)
    assert switch.read() is None
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}
