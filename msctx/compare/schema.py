"""JSON Schemas: of result.json, for those who read it; of files of comparisons and workloads, for editors."""

from __future__ import annotations

from typing import Any

from msctx.compare.config import KEYS
from msctx.compare.workload import DTYPES, LAYOUTS

_NUMBER = {"type": ["number", "null"]}
_COUNT = {"type": ["integer", "null"]}

CELL: dict[str, Any] = {
    "type": "object",
    "description": "One choice in one row: its figures, or the reason why there are none.",
    "required": ["point", "asked"],
    "anyOf": [{"required": ["ratio", "error", "spread", "ran"]}, {"required": ["reason"]}],
    "properties": {
        "point": {"type": "string", "description": "The name of the choice."},
        "asked": {"type": "object", "description": "Its options, as far as they have a say in this row."},
        "ran": {"type": "string", "description": "What ran: the algorithm, or algorithms with how often."},
        "ratio": {"type": "number", "description": "torch's time over its own, in the median."},
        "again": {"type": "number", "description": "Of a row's fastest choice: the ratio measured once more."},
        "spread": {**_NUMBER, "description": "The range of the middle half of these ratios, as a part of the median."},
        "ms": {"type": "number"},
        "error": {**_NUMBER, "description": "Against float64; null for whole runs."},
        "bound": {"type": "number", "description": "The error beyond which it has no time."},
        "workspace": {**_COUNT, "description": "Bytes that the algorithm takes beside the tensors."},
        "peak_bytes": {**_COUNT, "description": "The most memory at once that a run took beyond what was there."},
        "noisy": {"type": "boolean"},
        "reason": {"type": "string", "description": "Why it has no time."},
        "told": {"type": "string", "description": "What of the choice has no effect here."},
        "metrics": {"type": "object", "description": "Of an experiment: what its run returned."},
    },
}
ROW: dict[str, Any] = {
    "type": "object",
    "required": ["name", "direction", "problem", "count", "baseline", "cells"],
    "properties": {
        "name": {"type": "string"},
        "direction": {"enum": ["fprop", "dgrad", "wgrad", "forward", "inference", "training", "run"]},
        "problem": {"type": "string", "description": "Its shapes."},
        "count": {"type": "integer", "description": "How often it occurs."},
        "operations": {"type": "integer"},
        "baseline": {"type": "object", "description": "torch's own path: ran, ms, error, peak_bytes; empty where it failed."},
        "control": {"type": "number", "description": "torch over torch again: how far the machine is to be trusted."},
        "noisy": {"type": "boolean"},
        "rounds": {"type": "integer"},
        "reason": {"type": "string", "description": "Why nothing was measured."},
        "cells": {"type": "array", "items": CELL},
    },
}
RESULT: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "description": "What msctx compare found.",
    "type": "object",
    "required": ["format", "name", "subject", "command", "partial", "points", "rows", "totals", "best", "recommended"],
    "properties": {
        "format": {"const": 1},
        "name": {"type": "string"},
        "subject": {"type": "object", "description": "workload, model or experiment: which."},
        "partial": {"type": "string", "description": "Why rows are missing; empty: none is."},
        "points": {"type": "array", "items": {"type": "object", "required": ["name", "options"]}},
        "rows": {"type": "array", "items": ROW},
        "totals": {"type": "array", "description": "Each choice on all rows as often as they occur."},
        "best": {"type": "object", "description": "The fastest choice of each row; an empty name is torch's own path."},
        "costs": {"type": "array", "description": "What determinism costs: pairs of choices that differ in it alone."},
        "budget": {"type": "object", "description": "The fastest layers within an error of the whole model."},
        "against": {"type": "array", "description": "Each ratio over that of an earlier result."},
        "recommended": {"type": "string", "description": "YAML that msctx run takes."},
        "environment": {"type": "object"},
    },
}


def fits(data: Any) -> bool:
    """Whether data has what is read of an earlier result."""

    def is_row(row: Any) -> bool:
        return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("name", "direction", "problem"))

    def is_cell(cell: Any) -> bool:
        return isinstance(cell, dict) and isinstance(cell.get("point"), str) and isinstance(cell.get("ratio", 1.0), float | int)

    rows = data.get("rows") if isinstance(data, dict) and data.get("format") == 1 else None
    return isinstance(rows, list) and all(
        is_row(row) and isinstance(row.get("cells"), list) and all(map(is_cell, row["cells"])) for row in rows
    )


# --- files of comparisons and workloads -------------------------------------------------------------------------------

HELP = {
    "compare": "What msctx compare measures; the options of context hold for all choices.",
    "compare.name": "The name of the report. Unset, it is the name of the file.",
    "compare.workload": "Layers with their shapes: a shipped workload, or a YAML file of your own.",
    "compare.model": "A function that returns a torch.nn.Module and an input for it.",
    "compare.experiment": "A whole experiment: each choice is a run of its own.",
    "compare.directions": "Which directions of convolutions; unset, all three.",
    "compare.phases": "Which phases of a model; unset, both.",
    "compare.batch": "How many times a workload's images or rows.",
    "compare.seconds": "To be spent on each row, 1 unless said.",
    "compare.repetitions": "Of whole runs, where an experiment is compared.",
    "compare.error_limit": "The error beyond which a result is wrong and has no time, where the algorithm states no bound.",
    "compare.budget": "Find the fastest algorithm of each layer such that the error of the whole model stays within this.",
    "axes": "What is compared: options with lists of values, and names of your own with sets of options by names of your own.",
    "workload": "Layers of a network for msctx compare.",
    "workload.name": "The name of the workload.",
    "workload.source": "Where the shapes come from.",
    "workload.layers": "Convolutions (input, weight …) and products of matrices (a, b), each with how often it occurs.",
}
_SHAPE = {
    "anyOf": [
        {"type": "string", "pattern": r"^[1-9]\d*(x[1-9]\d*)*$"},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ]
}
_ALONG = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(x\d+)*$"},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
    ]
}
LAYER: dict[str, Any] = {
    "type": "object",
    "oneOf": [{"required": ["input", "weight"]}, {"required": ["a", "b"]}],
    "additionalProperties": False,
    "properties": {
        "name": {"description": "Its name in the report."},
        "input": {**_SHAPE, "description": "The shape of a convolution's input, such as 1x3x224x224."},
        "weight": {**_SHAPE, "description": "The shape of its weight, such as 64x3x7x7."},
        "stride": {**_ALONG, "description": "One number, or one for each spatial axis."},
        "padding": {**_ALONG, "description": "One number, or one for each spatial axis."},
        "dilation": {**_ALONG, "description": "One number, or one for each spatial axis."},
        "output_padding": {**_ALONG, "description": "One number, or one for each spatial axis; of transposed convolutions."},
        "groups": {"type": "integer", "minimum": 1, "description": "Into how many groups the channels fall."},
        "transposed": {"type": "boolean", "description": "Whether it is a transposed convolution."},
        "a": {**_SHAPE, "description": "The shape of a product's first matrix; leading axes are batches."},
        "b": {**_SHAPE, "description": "The shape of its second matrix."},
        "dtype": {"enum": [*DTYPES], "description": "The dtype of its tensors."},
        "layout": {"enum": [*LAYOUTS], "description": "The memory format of images."},
        "count": {"type": "integer", "minimum": 1, "description": "How often it occurs."},
    },
}


VALUES = {"description": "Values of this option to compare.", "type": "array", "minItems": 1}
"""What an option has as an axis."""


def sections(options: list[str]) -> dict[str, Any]:
    """What a file may hold for ``msctx compare``; *options* are the names that axes may have."""
    keys = {key: {"description": HELP[f"compare.{key}"], **kind.schema()} for key, kind in KEYS.items()}
    values = {name: {"$ref": "#/definitions/values"} for name in options}
    sets = {"type": "object", "minProperties": 1, "additionalProperties": {"type": ["object", "null"]}}
    plain = {"type": "string"}
    layers = {"type": "array", "minItems": 1, "items": LAYER}
    workload = {"name": plain, "source": plain, "layers": layers}
    return {
        "compare": {"type": ["object", "null"], "additionalProperties": False, "properties": keys},
        "axes": {
            "type": ["object", "null"],
            "properties": values,
            "additionalProperties": {"anyOf": [sets, {"type": "array"}]},
        },
        "workload": {
            "type": "object",
            "additionalProperties": False,
            "required": ["layers"],
            "properties": {key: {"description": HELP[f"workload.{key}"], **one} for key, one in workload.items()},
        },
    }
