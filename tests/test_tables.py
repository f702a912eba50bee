"""Plans, choices and precisions as text, HTML, CSV and data frames."""

import csv
import io
from pathlib import Path

import pytest
import torch

import msctx
from msctx.native.policy_and_choices import Choices


@pytest.fixture(scope="module")
def context() -> msctx.context:
    with msctx.context(conv_fprop_algo="gemm", precision_mode="allow_mix_precision_bf16") as ctx:
        torch.conv2d(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3))
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    return ctx


def test_a_plan_prints_as_a_table() -> None:
    plan = msctx.explain(deterministic="ON", device="cpu")
    lines = str(plan).splitlines()
    assert lines[0].split() == ["option", "value", "from", "device", "status", "switches,", "or", "why"]
    assert lines[2].split()[:6] == ["deterministic", "ON", "explain", "cpu", "honoured", "torch.deterministic"]
    assert repr(plan) == str(plan)
    assert str(msctx.explain({})) == "no options are set"
    assert str(msctx.explain(device_target="Ascend", device="cpu")).endswith(
        "preview only: no Ascend here; entering it raises DeviceError\nAscend: never run on a chip"
    )


def test_explain_takes_keywords_a_preset_and_dictionaries() -> None:
    by_keyword = msctx.explain(deterministic="ON", seed=3)
    assert by_keyword == msctx.explain({"deterministic": "ON", "seed": 3}) == msctx.explain({"deterministic": "ON"}, seed=3)
    assert [row.option for row in msctx.explain("reproducible").rows] == [
        r.option for r in msctx.explain(preset="reproducible").rows
    ]
    assert msctx.explain("reproducible", seed=7).rows
    with pytest.raises(msctx.OptionError, match="did you mean deterministic"):
        msctx.explain(determinstic="ON")


def test_a_context_shows_its_options() -> None:
    ctx = msctx.context(deterministic="ON", seed=3)
    assert repr(ctx).startswith("<msctx.Context deterministic='ON', seed=3; with-block at test_tables.py:")
    assert ", open" not in repr(ctx)
    with ctx:
        assert repr(ctx).endswith(", open>")
    assert "without options" in repr(msctx.context())
    assert ctx._repr_html_().count("<tr>") == 1 + len(ctx.plan.rows)


def test_html_is_escaped() -> None:
    html = msctx.explain(dump_path="<b>&", device="ascend")._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_csv_and_data_frames_have_the_same_rows_and_columns(context: msctx.context, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for table in (context.choices(), context.precisions(), context.plan):
        frame = table.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        rows = [*csv.DictReader(io.StringIO(table.to_csv()))]
        assert [*rows[0]] == [*frame.columns]
        assert len(rows) == len(frame) == len(table.as_dicts())
        assert table.to_csv(tmp_path / "table.csv") is None
        assert (tmp_path / "table.csv").read_text() == table.to_csv()
    row = context.choices().to_pandas().iloc[0]
    assert (row["direction"], row["problem.input"], row["ran"], row["calls"]) == ("fprop", (1, 2, 5, 5), "gemm", 1)
    assert "1 2 5 5" in context.choices().to_csv()


def test_without_rows_the_columns_are_the_same(context: msctx.context) -> None:
    for table in (context.choices(), context.precisions(), context.graphs()):
        columns = table.to_csv().partition("\n")[0]
        assert type(table)().to_csv() == f"{columns}\n"
        assert columns.split(",")[0] in ("direction", "operator", "id")
    pandas = pytest.importorskip("pandas")
    pandas.testing.assert_index_equal(Choices().to_pandas().columns, context.choices().to_pandas().columns)
