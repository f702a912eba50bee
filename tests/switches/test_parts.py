"""Switches of msctx's own parts: they read what was written, and give back what was found; a thread has its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import _C

import msctx
from msctx.context import ledger
from msctx.options.policies import GraphFiles
from msctx.switches import SWITCHES
from msctx.switches.parts import of_session
from msctx.themes.observe import _recorder

THREAD = ("models.saved_on_host", "models.copies_of_parameters")


@pytest.mark.parametrize("name", [*THREAD, "models.recompute"])
def test_what_is_written_is_read_back_and_taken_back(name: str) -> None:
    switch = SWITCHES[name]
    assert switch.read() is False
    for value in (True, True, False, False):
        switch.write(value)
        assert switch.read() is value
    assert _C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("models.parameters", place) for place in ("host", "file", None)),
        *(("models.weight_format", wanted) for wanted in ("channels_last", "contiguous", None)),
    ],
)
def test_a_value_without_models_is_a_value(name: str, value: str | None) -> None:
    switch = SWITCHES[name]
    switch.write(value)
    assert switch.read() == value
    switch.write(None)
    assert switch.read() is None


@pytest.mark.parametrize("name", THREAD)
def test_each_thread_has_its_own(name: str) -> None:
    switch, found = SWITCHES[name], []
    switch.write(True)
    thread = threading.Thread(target=lambda: found.append(switch.read()))
    thread.start()
    thread.join()
    switch.write(False)
    assert found == [False]


def test_one_pair_of_hooks_serves_both() -> None:
    for name in THREAD:
        SWITCHES[name].write(True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda packed: packed):
        pass
    for name in THREAD:
        assert _C._autograd._top_saved_tensors_default_hooks(True) is not None
        SWITCHES[name].write(False)
    assert _C._autograd._top_saved_tensors_default_hooks(True) is None


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


def test_each_thread_has_values_of_its_own() -> None:
    name = "session.iterations_per_loop"
    elsewhere: list[object] = []
    hold = ledger.apply({name: 3}, ledger.Hold("test"))
    try:
        assert of_session(name) == SWITCHES[name].read() == 3
        thread = threading.Thread(target=lambda: elsewhere.append(of_session(name)))
        thread.start()
        thread.join()
    finally:
        ledger.undo(hold)
    assert elsewhere == [None]
    assert of_session(name) is None


def test_it_reads_what_was_written_until_it_is_put_back(tmp_path: Path) -> None:
    switch = SWITCHES["torch.profiler"]
    found, value = switch.take(), _recorder({"output": str(tmp_path)})
    switch.set(value)
    assert switch.read() == value
    switch.put_back(found)
    assert switch.read() is None
