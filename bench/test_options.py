"""What checking options costs: a YAML file of thirty, read and validated. Run with `make bench`."""

from __future__ import annotations

import json

import pytest

from msctx.options import OPTIONS, make_layer
from msctx.options.yamlfile import parse

NAMES = [name for name, option in OPTIONS.items() if "." not in name and not option.names_file][:30]
TEXT = "context:\n" + "".join(f"  {name}: {json.dumps(OPTIONS[name].example)}\n" for name in NAMES)


@pytest.mark.benchmark(group="options")
def test_validate_a_file_of_thirty_options(benchmark):
    def once():
        document = parse(TEXT, "x.yaml")
        return make_layer(document.data["context"], "x.yaml", document.under("context"))

    assert {s.option.name for s in once().settings.values() if not s.via} == set(NAMES)
    benchmark(once)
