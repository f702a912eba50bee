"""The JSON Schema of files of comparisons and workloads, for editors, made of the models that read them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from msctx.compare.config import Keys
from msctx.compare.workload import Row, Section

VALUES = {"description": "Values of this option to compare.", "type": "array", "minItems": 1}
"""What an option has as an axis."""


def sections(options: list[str]) -> dict[str, Any]:
    """What a file may hold for ``msctx compare``; *options* are the names that axes may have."""
    workload = _of(Section)
    workload["properties"]["layers"]["items"] = _of(Row)
    sets = {"type": "object", "minProperties": 1, "additionalProperties": {"type": ["object", "null"]}}
    axes = "What is compared: options with lists of values, and names of your own with sets of options by names of your own."
    return {
        "compare": {**_of(Keys), "type": ["object", "null"]},
        "axes": {
            "description": axes,
            "type": ["object", "null"],
            "properties": {name: {"$ref": "#/definitions/values"} for name in options},
            "additionalProperties": {"anyOf": [sets, {"type": "array"}]},
        },
        "workload": workload,
    }


def _of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model without what editors would show above every text, or write into a file."""
    found = model.model_json_schema()
    unwanted = {"title", "default"}
    properties = {key: {k: v for k, v in one.items() if k not in unwanted} for key, one in found["properties"].items()}
    return {k: v for k, v in found.items() if k not in unwanted} | {"properties": properties}
