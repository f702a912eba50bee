"""Options as a group of a Hydra configuration: ``python train.py msctx.deterministic=ON``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from msctx.options import OPTIONS

_KEYS = dict.fromkeys(spelling.partition(".")[0] for option in OPTIONS.values() for spelling in option.spellings)

MsctxOptions = make_dataclass("MsctxOptions", [(key, Any, None) for key in ("preset", *_KEYS)])
"""Every key that may stand under ``context:`` in a YAML file, unset; those of groups (``gpu_config`` …) take dictionaries."""
MsctxOptions.__module__ = __name__  # so that configurations can be pickled


def register(group: str = "msctx", name: str = "options") -> None:
    """Put the options into Hydra's store. A configuration takes them with ``defaults: [msctx: options]``."""
    ConfigStore.instance().store(group=group, name=name, node=MsctxOptions, provider="msctx")


def options(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """What a group comes to, for ``msctx.context(**options(config.msctx))``; what is unset is left out."""
    plain = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)
    assert isinstance(plain, dict)
    return _set(plain)


def _set(given: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _set(it) if isinstance(it, Mapping) else it for key, it in given.items() if it is not None}
