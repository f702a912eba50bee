"""What travels with msctx is found in a checkout; `make wheel` looks at what is installed."""

from __future__ import annotations

from pathlib import Path

from msctx import shipped

ROOT = Path(__file__).resolve().parents[1]


def test_a_checkout_uses_its_own_folders() -> None:
    assert ROOT / "configs" == shipped.CONFIGS
    assert ROOT / "kernels" == shipped.KERNEL_SOURCES


def test_dir_shows_what_is_public() -> None:
    import msctx

    assert set(msctx.__all__) <= set(dir(msctx))
    assert not {"import_module", "Any", "os", "TYPE_CHECKING", "annotations"} & set(dir(msctx))
