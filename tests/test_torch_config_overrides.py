"""What a program has set in torch's configuration modules is reported and put back, whichever way this torch keeps it."""

from __future__ import annotations

import threading

import pytest
import torch.compiler.config as config

from msctx.torch_config_overrides import is_threads_own, override, put_override

KEY = "cache_key_tag"


@pytest.fixture(autouse=True)
def as_found():
    found = override(config, KEY)
    yield
    put_override(config, KEY, found)


def test_what_is_kept_of_the_configuration_is_made_again() -> None:
    found, unset = config.get_hash(), override(config, KEY)
    config.cache_key_tag = "one"
    changed = config.get_hash()
    assert changed != found
    put_override(config, KEY, unset)
    assert config.get_hash() == found
    put_override(config, KEY, "one")
    assert config.get_hash() == changed


def test_whether_each_thread_has_its_own() -> None:
    config.cache_key_tag = "one"
    seen = []
    thread = threading.Thread(target=lambda: seen.append(config.cache_key_tag))
    thread.start()
    thread.join()
    assert (seen != ["one"]) is is_threads_own(config, KEY)
