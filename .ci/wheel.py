"""The package as others get it: the wheel of dist/ is used where there is no checkout, no compiler and no network.

It is installed with its dependencies into an environment of its own; home and working folder are empty ones, and nothing may
be written into the installed packages: their files are compared before and after, as modes do not bind root. The network is cut off
where the system permits it (unshare).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIGRATED = ROOT / "tests" / "data" / "migrate" / "resnet.py"

EVERY_MODULE = """
import importlib, sys
from pathlib import Path
import msctx
package = Path(msctx.__file__).parent
assert package.is_relative_to(sys.prefix), f"{package} is not what was installed"
paths = [p.relative_to(package.parent).with_suffix("") for p in package.rglob("*.py")]
names = [".".join(p.parts).removesuffix(".__init__") for p in paths if not p.parts[1].startswith(("_con", "_ker"))]
for name in sorted({*names} - {"msctx.__main__"}):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # a library that msctx integrates with is not here
        assert name.startswith("msctx.integrations.") and not error.name.startswith("msctx"), error
print(len(names), "modules")
"""
CONVOLUTION = """
import torch, msctx
from msctx.shipped import KERNEL_SOURCES
from pathlib import Path
assert KERNEL_SOURCES == Path(msctx.__file__).parent / "_kernels", KERNEL_SOURCES
x, w = torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)
with msctx.context(conv_fprop_algo="winograd", fallback="error") as ctx:
    y = torch.nn.functional.conv2d(x, w, padding=1)
(row,) = ctx.choices()
assert (row.requested, row.ran, row.provider) == ("winograd", "winograd", "msctx"), row
error = (y - torch.nn.functional.conv2d(x.double(), w.double(), padding=1)).abs().max()
assert error < 1e-3, error
print(row)
"""
EVERYTHING = """
import torch, msctx
from pathlib import Path
from msctx.options import OPTIONS
x, w = torch.randn(2, 8, 20, 20, requires_grad=True), torch.randn(8, 8, 3, 3, requires_grad=True)
ran = set()
def step(dtype):
    inputs = [t.detach().to(dtype).requires_grad_() for t in (x, w)]
    y = torch.nn.functional.conv2d(*inputs, padding=1)
    return [y, *torch.autograd.grad(y.square().sum(), inputs)]
expected = step(torch.float64)
for option in ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo"):
    for name in OPTIONS[option].choices:
        with msctx.context(**{option: name}, fallback="silent") as ctx:
            found = step(torch.float32)
        ran |= {(row.direction, row.ran) for row in ctx.choices() if row.provider == "msctx"}
        for a, b in zip(found, expected):
            assert (a - b).abs().max() < 1e-3 * b.abs().max(), (option, name)
assert len(ran) >= 23, ran
with msctx.context(matmul_algo="strict", fallback="error", max_device_memory="1GB") as ctx:
    product = x.detach().flatten(1) @ torch.randn(3200, 4)
    (cap,) = msctx.memory_stats()["caps"]
(row,) = ctx.choices()
assert (row.ran, row.provider) == ("strict", "msctx"), row
assert cap["requested_bytes"] == 2**30 and cap["peak_bytes"] >= product.nbytes, cap
with msctx.context(session={"enable_dump": True, "dump_path": "dump"}):
    product.relu()
dumped = [*Path("dump").rglob("*relu*.npy")]
assert dumped, [*Path("dump").rglob("*")]
print(len(ran), "algorithms, a product, a cap, a dump")
"""
COMMANDS = """
msctx --version
python -m msctx --version
msctx doctor
msctx explain deterministic=ON conv_fprop_algo=winograd
msctx explain --all
msctx options conv_fprop_algo
msctx schema
msctx init mine.yaml
msctx explain mine.yaml
msctx run digits args.epochs=1 conv_fprop_algo=gemm --out run
msctx exec deterministic=ON strict=true -- python -c __import__('torch').are_deterministic_algorithms_enabled()or(exit(1))
msctx run mine.yaml --nproc 2 --out ranks
msctx state
msctx diff run run
msctx diff ranks/rank_0 ranks/rank_1
msctx compare digits args.epochs=1 --axis deterministic=ON --quick --out compared
msctx migrate mindspore.py
"""
"""What is done with the wheel, in a folder that holds mindspore.py alone; nothing of it may fail."""
LARGEST = 12 * 2**20
"""Bytes of a wheel."""
OF_SDIST = """
msctx doctor
msctx run digits args.epochs=1 conv_fprop_algo=gemm --out run
"""


def main() -> None:
    (sdist,), (wheel,) = ROOT.glob("dist/*.tar.gz"), ROOT.glob("dist/*.whl")
    with tempfile.TemporaryDirectory(prefix="msctx-wheel-") as name:
        folder = Path(name).resolve()
        of_sdist = whole(folder, sdist, wheel)
        python = installed(folder / "env", wheel)
        used(folder, python)
        built(folder, python, of_sdist)


def whole(folder: Path, sdist: Path, wheel: Path) -> Path:
    """The sdist and the wheel have the same files, and all of the checkout's that travel; the libraries are the wheel's alone.

    Returns the wheel that the sdist makes, without libraries.
    """
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    tracked = {Path(name) for name in listed if name and (ROOT / name).exists()}
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder / "of-sdist", sdist)
    (of_sdist,) = (folder / "of-sdist").iterdir()
    differing = {(n, crc) for n, crc in contents(of_sdist) ^ contents(wheel) if ".dist-info/" not in n and not n.endswith("/")}
    libraries = [name for name, _ in differing if name.startswith("msctx/_libraries/")]
    assert len(libraries) == len(differing) >= 2, f"the wheels of checkout and sdist differ: {sorted(differing)}"
    missing = travelling(tracked) - {name for name, _ in contents(wheel)}
    assert not missing, f"not in the wheel: {sorted(missing)}"
    print(f"{sdist.name}, {wheel.name}: {len(contents(wheel))} files, {wheel.stat().st_size / 2**20:.1f} MB", flush=True)
    assert wheel.stat().st_size <= LARGEST, f"a wheel has at most {LARGEST} bytes"
    return of_sdist


def travelling(tracked: set[Path]) -> set[str]:
    """The files that travel with msctx, as the wheel names them."""
    folders = {"msctx": "msctx", "configs": "msctx/_configs", "kernels": "msctx/_kernels"}
    named = {path: folders.get(path.parts[0]) for path in tracked if path.suffix != ".pth"}  # it stands beside the package
    return {f"{name}/{'/'.join(path.parts[1:])}" for path, name in named.items() if name}


def contents(wheel: Path) -> set[tuple[str, int]]:
    with zipfile.ZipFile(wheel) as file:
        return {(entry.filename, entry.CRC) for entry in file.infolist()}


def installed(environment: Path, wheel: Path) -> Path:
    """The Python of an environment in which the wheel is installed as a user does."""
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    pip(python, "install", "-c", ROOT / "constraints.txt", f"{wheel}[experiments]")
    return python


def used(folder: Path, python: Path) -> None:
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    shutil.copy(MIGRATED, work / "mindspore.py")
    packages = next((python.parents[1] / "lib").glob("python*/site-packages"))
    before = listing(packages)
    run("chmod", "-R", "a-w", packages)
    alone = {"PATH": f"{python.parent}:{without_compilers(folder / 'bin')}", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        tried(work, alone, [EVERY_MODULE, CONVOLUTION, EVERYTHING], COMMANDS)
    finally:
        run("chmod", "-R", "u+w", packages)
    changed = before ^ listing(packages)
    assert not changed, f"written into the installed packages: {sorted(changed)}"
    built = [*home.rglob("*.so")]
    assert not built, f"built although the wheel has it: {built}"


def built(folder: Path, python: Path, of_sdist: Path) -> None:
    """Without libraries, and with a compiler: the first option that needs the core builds it."""
    pip(python, "install", "--no-deps", "--force-reinstall", of_sdist)
    home = folder / "other"
    home.mkdir()
    alone = {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(home)}
    tried(home, alone, [CONVOLUTION, EVERY_MODULE, EVERYTHING], OF_SDIST)


def tried(folder: Path, alone: dict[str, str], programs: list[str], commands: str) -> None:
    """The programs, then the commands, each in a process that sees no network but the loopback, where the system permits it."""
    cut_off = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*cut_off, "true"], check=False).returncode:
        print("the network is not cut off here", flush=True)
        cut_off = []
    for words in [["python", "-c", program] for program in programs] + [line.split() for line in commands.strip().splitlines()]:
        began = time.monotonic()
        said = run(*words, cwd=folder, alone=alone, under=cut_off).splitlines()
        name = " ".join(words[:2] if words[2:] and words[2] in programs else words)
        print(f"{time.monotonic() - began:5.1f} s  $ {name}: {said[-1] if said else ''}", flush=True)


def without_compilers(folder: Path) -> Path:
    """A folder with the programs of this machine, but for compilers."""
    folder.mkdir()
    for path in (path for place in ("/usr/bin", "/bin") for path in Path(place).iterdir()):
        if not re.search(r"(^|-)(cc|gcc|g\+\+|c\+\+|clang\+?\+?|c[89]9)(-|$)", path.name) and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    assert not any(shutil.which(name, path=str(folder)) for name in ("c++", "g++", "gcc", "cc", "clang++"))
    return folder


def listing(packages: Path) -> set[tuple[str, int, int]]:
    found = [(path, path.lstat()) for path in packages.rglob("*")]
    return {(str(path), status.st_size, status.st_mtime_ns) for path, status in found}


def pip(python: object, *words: object) -> None:
    run(python, "-m", "pip", *words, "--quiet", "--disable-pip-version-check")


def run(*words: object, cwd: Path | None = None, alone: dict[str, str] | None = None, under: Sequence[str] = ()) -> str:
    """What a command prints, with the environment *alone*; its whole output is shown where it fails."""
    environment = alone or {**os.environ}
    command = [str(word) for word in words]
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    begun = [shutil.which(under[0]), *under[1:]] if under else []
    done = subprocess.run(
        [*begun, program, *command[1:]], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}ended with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
