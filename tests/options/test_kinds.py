"""How values of options are written."""

import pytest

from msctx.tables import in_words


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (2**63, "8192 PiB")]
)
def test_sizes_in_words(size, words):
    assert in_words(size) == words
