"""Everything that msctx is made of travels with it: what setuptools finds is what lies in the folders, listed nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKS = {"_configs": "configs", "_kernels": "kernels"}


def in_folders() -> set[str]:
    """The files of the package and of the folders that it links to, as the wheel names them."""
    folders = {"msctx": ROOT / "msctx", **{f"msctx/{link}": ROOT / folder for link, folder in LINKS.items()}}
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def test_setuptools_finds_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    assert set(build.get_outputs(include_bytecode=False)) == {f"{build.build_lib}/{name}" for name in in_folders()}


@pytest.mark.parametrize(("link", "folder"), LINKS.items())
def test_a_checkout_uses_its_own_folders(link: str, folder: str) -> None:
    assert (ROOT / "msctx" / link).resolve() == ROOT / folder
