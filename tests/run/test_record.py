"""Run directories: never overwritten, files whole or absent, anything a run returns as JSON."""

import json

import numpy
import pytest
import torch

from msctx.errors import FileError
from msctx.run.record import Record, plain, weights_sha256


def test_new_folders_never_collide(tmp_path):
    folders = {Record.create(None, str(tmp_path), "x").folder for _ in range(3)}
    assert len(folders) == 3


def test_a_folder_with_content_is_refused(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(FileError, match="is not empty"):
        Record.create(str(tmp_path), "", "")
    assert Record.create(str(tmp_path / "new" / "deep"), "", "").folder.is_dir()


def test_plain_data():
    value = {
        "tensor": torch.tensor(1.5),
        "vector": torch.zeros(2, dtype=torch.int8),
        "numpy": numpy.float32(2),
        "nan": float("nan"),
        "set": {1},
        3: torch.float32,
    }
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text)["tensor"] == 1.5
    assert json.loads(text)["numpy"] == 2.0
    assert json.loads(text)["nan"] == "nan"
    assert json.loads(text)["3"] == "torch.float32"


def test_what_cannot_be_printed_does_not_keep_a_record_from_being_written():
    class Mute:
        def __str__(self):
            raise RuntimeError("no text")

    assert plain({"value": Mute()}) == {"value": "<Mute str() failed>"}


def test_metrics_are_lines(tmp_path):
    record = Record(tmp_path)
    record.metrics({"epoch": 1})
    record.metrics({"epoch": 2, "loss": float("inf")})
    assert [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"epoch": 1},
        {"epoch": 2, "loss": "inf"},
    ]


def test_the_fingerprint_sees_every_bit():
    model = torch.nn.Linear(3, 2).requires_grad_(False)
    first = weights_sha256(model)
    assert weights_sha256(model) == first
    model.weight.view(torch.int32)[0, 0] ^= 1  # the lowest bit of one number
    assert weights_sha256(model) != first
    model.weight.view(torch.int32)[0, 0] ^= 1
    assert weights_sha256(model) == first
    assert weights_sha256(torch.nn.Linear(3, 2, dtype=torch.bfloat16))
