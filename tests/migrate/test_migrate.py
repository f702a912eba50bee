"""`msctx migrate`: what is found in whole scripts, what is left out and why, and that nothing of a script is ever run."""

import json
import os
import sys

import pytest
from migrations import DATA, SCRIPTS, check_outputs

from msctx import migrate
from msctx.options import DEVICES


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_written_means_what_was_read_on_each_device_and_nothing_is_run(script, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    environment, modules = dict(os.environ), set(sys.modules)
    migration = migrate.read(str(script))
    check_outputs(migration, tmp_path)
    for device in (None, *DEVICES):
        migration = migrate.read(str(script), device)
        data = json.loads(json.dumps(migrate.as_dict(migration, migrate.planned(migration, device))))
        assert {row["option"] for row in data["plan"]["options"]} <= {s.option.name for s in migration.layer.settings.values()}
        assert all(row["origin"].startswith(f"{script}:") for row in data["plan"]["options"])
        assert len(data["calls"]) == len(migration.calls)
        assert [p["where"] for p in data["problems"]] == [str(p.mark) for p in migration.problems]
    assert [*(tmp_path / "empty").iterdir()] == []
    assert dict(os.environ) == environment
    assert not {name for name in set(sys.modules) - modules if name.partition(".")[0] in ("mindspore", "src", "zmq")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_found_is_what_was_read(script, monkeypatch):
    """Options, calls with their notes, and what is left out with its place: golden files (``UPDATE_GOLDEN=1`` writes them)."""
    monkeypatch.chdir(DATA)
    found = migrate.read(script.name)
    calls = [f"{c.mark.line}:{c.mark.column} {c.function}" + "".join(f"\n  {n}" for n in c.notes) for c in found.calls]
    text = "\n\n".join([migrate.as_yaml(found), "\n".join(calls), *map(str, found.problems)]) + "\n"
    text = text.replace(str(DATA), "HERE")
    golden = script.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_settings_of_jit_and_of_the_inner_context_are_reported(write):
    path = write(
        "import mindspore as ms\n"
        "net.set_jit_config(ms.JitConfig(jit_level='O1'))\n"
        "@ms.jit(jit_level='O2')\n"
        "def f(x): return x\n"
        "@ms.jit\n"
        "def g(x): return x\n"
        "ms.context._context().set_param('mode', 1)\n"
        "print(ms.context._context().get_param('mode'))\n"
    )
    found = [(p.mark.line, p.text) for p in migrate.read(str(path)).problems]
    assert [line for line, _ in found] == [2, 3, 7]
    for (_, text), part in zip(
        found, ("enable_graph_kernel", "msctx.mindspore.jit takes", "arguments of set_context"), strict=True
    ):
        assert part in text
