"""What the tests of `msctx migrate` share: what a migration means, what it reported, and whether its outputs say the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from msctx import migrate
from msctx.errors import FileError
from msctx.options import DEVICES, Layer, Settings, make_layer
from msctx.run.experiment_and_entry import read as read_yaml

DATA = Path(__file__).parents[1] / "data" / "migrate"
SCRIPTS = sorted(DATA.glob("*.py"))
Write = Callable[..., str]
Of = Callable[..., migrate.Migration]


def meaning(layer: Layer) -> dict[str, dict[str, Any]]:
    """Device → option → value in force: the same for layers that mean the same, however they spell it."""
    found = Settings([layer])
    return {device: {name: found.on(device)[name][0].value for name in sorted(found.on(device))} for device in DEVICES}


def reported(migration: migrate.Migration) -> list[str]:
    return [f"{p.mark.line if p.mark else '-'} {p.path}: {p.text}" for p in migration.problems]


def check_outputs(migration: migrate.Migration, folder: Path) -> None:
    """What is written down must mean what was read: as YAML for msctx and for others, as a dictionary."""
    expected = meaning(migration.layer)
    file = folder / "migrated.yaml"
    file.write_text(migrate.as_yaml(migration), encoding="utf-8", errors="surrogatepass")
    levels = read_yaml(str(file)).levels
    assert meaning(levels.get("yaml", Layer())) == expected
    by_others = (yaml.safe_load(file.read_text(encoding="utf-8")) or {})["context"] or {}
    assert meaning(make_layer(by_others, "YAML 1.1")) == expected
    assert meaning(make_layer(migration.options, "options")) == expected


def problem_of(path: str) -> str:
    with pytest.raises(FileError) as error:
        migrate.read(path)
    (problem,) = error.value.problems
    return str(problem)
