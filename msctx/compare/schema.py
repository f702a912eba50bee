"""JSON Schemas: of result.json, for those who read it; of files of comparisons and workloads, for editors."""

from __future__ import annotations

import math
from typing import Any

from msctx.compare.config import KEYS
from msctx.compare.workload import DTYPES, LAYOUTS

_NUMBER = {"type": ["number", "null"]}
_COUNT = {"type": ["integer", "null"]}

CELL: dict[str, Any] = {
    "type": "object",
    "description": "One choice in one row: its figures, or the reason why there are none.",
    "required": ["point", "asked", "status"],
    "additionalProperties": False,
    "anyOf": [{"required": ["ratio", "error", "spread", "ran"]}, {"required": ["reason"]}],
    "properties": {
        "point": {"type": "string", "description": "The name of the choice."},
        "asked": {"type": "object", "description": "Those of its options that apply to this row."},
        "ran": {"type": "string", "description": "What ran: the algorithm, or algorithms with how often."},
        "ratio": {"type": "number", "description": "torch's time over its own, in the median."},
        "measured": {"type": "array", "description": "Of a row's fastest: the ratios of both times; the smaller one counts."},
        "status": {
            "enum": ["measured", "no_say", "unable", "failed", "skipped"],
            "description": "no_say: none of its options applies to this row; unable: it cannot run, or is not carried out; failed: "
            "it raised, or its result was wrong; skipped: there was no time for it.",
        },
        "same_as": {
            "type": "string",
            "description": "The choice whose figures these are, as it comes to the same kernels; empty: torch's own path.",
        },
        "times": {"type": "array", "description": "Of each round: ms of a run.", "items": {"type": "number"}},
        "spread": {
            **_NUMBER,
            "description": "The range of the middle half of these ratios, as a part of the median; null: it was stopped after "
            "two runs.",
        },
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
_TEXT, _FLAG, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}


def _closed(description: str, needed: str, **members: Any) -> dict[str, Any]:
    """An object of these members, of which those named in *needed* are always there."""
    return {
        "type": "object",
        "description": description,
        "required": needed.split(),
        "additionalProperties": False,
        "properties": members,
    }


def _list(description: str, items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "description": description, "items": items}


_SETTING = {"ratio": {"type": "number"}, "error": {"type": "number"}, "options": _OBJECT}
_LAYERS = {
    "rules": {"type": "object", "description": "conv_algo_rules."},
    "float32": _list("The modules that are kept in float32.", _TEXT),
}
ROW: dict[str, Any] = _closed(
    "One direction of a layer, one phase of a model, or a whole run.",
    "name direction problem count operations baseline cells",
    name=_TEXT,
    direction={"enum": ["fprop", "dgrad", "wgrad", "forward", "inference", "training", "run"]},
    problem={**_TEXT, "description": "Its shapes."},
    count={"type": "integer", "description": "How often it occurs."},
    operations={"type": "integer", "description": "Multiplications and additions; 0: not counted."},
    baseline=_closed(
        "torch's own path with what holds for all; empty where it failed.",
        "",
        ran=_TEXT,
        ms={"type": "number"},
        error=_NUMBER,
        peak_bytes=_COUNT,
        times=_list("Of each round: ms of a run.", {"type": "number"}),
        metrics=_OBJECT,
    ),
    control={"type": "number", "description": "torch over torch again: how far the machine is to be trusted."},
    control_spread={**_NUMBER, "description": "The range of the middle half of that over the rounds."},
    noisy=_FLAG,
    rounds={"type": "integer"},
    reason={**_TEXT, "description": "Why nothing was measured."},
    cells={"type": "array", "items": CELL},
)
RESULT: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_closed(
        "What msctx compare found.",
        "format name subject source command partial interrupted seconds_per_row error_limit context points rows totals best "
        "costs recommended files environment",
        format={"const": 1},
        name=_TEXT,
        subject={"type": "object", "description": "workload, model or experiment: which."},
        source={**_TEXT, "description": "Where a workload's shapes come from."},
        command={**_TEXT, "description": "What was typed."},
        partial={**_TEXT, "description": "Why rows are missing; empty: none is."},
        interrupted={**_FLAG, "description": "By Ctrl-C."},
        seconds_per_row={"type": "number"},
        error_limit={**_NUMBER, "description": "That was asked for; null: 1e-3, and 0.02 where a choice lowers the precision."},
        context={"type": "object", "description": "The options that hold for all choices, and for torch's own path."},
        points=_list("The choices.", _closed("One of them.", "name options", name=_TEXT, options=_OBJECT)),
        rows={"type": "array", "items": ROW},
        totals=_list(
            "Each choice on all rows as often as they occur.",
            _closed(
                "One of them.",
                "point ratio error workspace peak_bytes rows rows_of_torch rows_stopped",
                point=_TEXT,
                ratio={"type": "number", "description": "torch's time over its own; torch's counts where it has none."},
                error={**_NUMBER, "description": "The largest."},
                workspace={"type": "integer", "description": "The largest."},
                peak_bytes={"type": "integer", "description": "The largest."},
                rows={"type": "integer", "description": "In how many rows it has a time."},
                rows_of_torch={"type": "integer", "description": "In how many it has none."},
                rows_stopped={
                    "type": "integer",
                    "description": "In how many it was stopped after two runs, ten times as slow: the ratio is rough, and no gain.",
                },
            ),
        ),
        best=_closed(
            "What to take: for layers the best choice of each, of those with the same options beside algorithms; else one for all.",
            "ratio points options",
            ratio={"type": "number"},
            points=_list(
                "For each row; an empty name is torch's own path, or, within a budget, what no single choice is.", _TEXT
            ),
            options={
                "type": "object",
                "description": "What is recommended, beside the options that hold for all; empty: nothing.",
            },
        ),
        costs=_list(
            "What determinism costs: pairs of choices that differ in it alone.",
            {
                "type": "object",
                "required": ["option", "with", "without", "geometric_mean", "rows"],
                "additionalProperties": False,
                "properties": {
                    "option": _TEXT,
                    "with": _TEXT,
                    "without": _TEXT,
                    "geometric_mean": {"type": "number", "description": "The time with it over that without."},
                    "rows": _list("By row.", _closed("", "row cost", row={"type": "integer"}, cost={"type": "number"})),
                },
            },
        ),
        budget=_closed(
            "The fastest layers within an error of the whole model, or why there are none.",
            "budget",
            budget={"type": "number"},
            phase=_TEXT,
            reason=_TEXT,
            per_layer=_closed("Layer by layer.", "ratio error options rules float32", **_SETTING, **_LAYERS),
            uniform=_closed("The best choice for all.", "point ratio error options", point=_TEXT, **_SETTING),
            tried={"type": "integer", "description": "How many settings the model was run with."},
        ),
        against=_list(
            "Each ratio over that of an earlier result.",
            _closed(
                "One cell.",
                "name direction problem point change",
                name=_TEXT,
                direction=_TEXT,
                problem=_TEXT,
                point=_TEXT,
                change={**_NUMBER, "description": "null: it has no time today."},
                reason=_TEXT,
            ),
        ),
        elsewhere=_list("In what the machine or the settings of the earlier result differ.", _TEXT),
        recommended={**_TEXT, "description": "YAML that msctx run takes."},
        files={"type": "object", "description": "Files that it names: name, text."},
        environment=_OBJECT,
    ),
}


def fits(data: Any) -> bool:
    """Whether data has what is read of an earlier result."""

    def is_row(row: Any) -> bool:
        return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("name", "direction", "problem"))

    def is_cell(cell: Any) -> bool:
        ratio = cell.get("ratio", 1.0) if isinstance(cell, dict) and isinstance(cell.get("point"), str) else None
        return isinstance(ratio, float | int) and math.isfinite(ratio) and ratio > 0

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
    "compare.seconds": "To be spent on each row, default 1.",
    "compare.repetitions": "Of whole runs, where an experiment is compared, default 3, after one that is not counted.",
    "compare.error_limit": "The error beyond which a result is wrong and has no time, where the algorithm states no bound. Unset, "
    "it is 1e-3, and 0.02 for choices that lower the precision.",
    "compare.budget": "Find the fastest setting of each layer such that the error of the whole model stays within this.",
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
        "b_transposed": {"type": "boolean", "description": "Whether it lies in memory as its transpose: a weight of Linear."},
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
    workload: dict[str, dict[str, Any]] = {"name": plain, "source": plain, "layers": layers}
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
