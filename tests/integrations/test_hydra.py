"""Options in a Hydra configuration: set by the command line, checked by Hydra and by msctx, entered as a context."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import msctx

hydra = pytest.importorskip("hydra")

from hydra.core.global_hydra import GlobalHydra  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402

from msctx.integrations.hydra import options, register  # noqa: E402

Compose = Callable[..., DictConfig]


@pytest.fixture
def compose(tmp_path: Any) -> Iterator[Compose]:
    (tmp_path / "config.yaml").write_text(
        "defaults: [{msctx: options}, _self_]\nmsctx: {seed: 1, runtime_num_threads: '${threads}'}\nthreads: 2\n"
    )
    register()
    with hydra.initialize_config_dir(str(tmp_path), version_base=None):
        yield lambda *words: hydra.compose("config", [*words])
    GlobalHydra.instance().clear()


def test_what_is_set_is_entered_and_nothing_else(compose: Compose) -> None:
    config = compose("msctx.deterministic=ON", "threads=1")
    assert options(config.msctx) == {"seed": 1, "runtime_num_threads": 1, "deterministic": "ON"}
    with msctx.context(**options(config.msctx)):
        assert msctx.get_context("deterministic") == "ON"
    whole = compose("msctx.gpu_config={conv_allow_tf32: false}", "msctx.preset=reproducible")
    with msctx.context(**options(whole.msctx)) as ctx:
        assert ctx.get("gpu_config.conv_allow_tf32") is False


def test_a_wrong_key_is_hydras_error_and_a_wrong_value_ours(compose: Compose) -> None:
    with pytest.raises(hydra.errors.ConfigCompositionException, match=r"msctx\.determinstic"):
        compose("msctx.determinstic=ON")
    with pytest.raises(msctx.OptionError, match="deterministic: 'MAYBE' is not one of the values"):
        msctx.context(**options(compose("msctx.deterministic=MAYBE").msctx))


def test_it_takes_plain_dictionaries() -> None:
    assert options({"seed": 0, "preset": None}) == options(OmegaConf.create({"seed": 0})) == {"seed": 0}


def test_it_can_be_pickled_and_unset_keys_of_groups_are_left_out(compose: Compose) -> None:
    config = compose("msctx.deterministic=ON")
    again = pickle.loads(pickle.dumps(config))
    assert options(again.msctx)["deterministic"] == "ON"
    assert options({"gpu_config": {"conv_allow_tf32": None}}) == {"gpu_config": {}}
