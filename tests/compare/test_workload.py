"""Workload files: what is wrong is reported with its place; what is timed of them, and how its error is reported."""

import pytest
import torch
from comparisons import model_file

from msctx.compare.layer_workload_file import NetworkLayer, Product, Workload, dump, output_of, parse, read
from msctx.compare.timed_cases import error_of, load, of_layer, of_model
from msctx.errors import EntryError
from msctx.native.policy_and_choices import ConvProblem
from msctx.options.yaml_json_ini import parse as parse_yaml
from msctx.shipped import shipped


def parsed(text: str) -> Workload:
    return parse(parse_yaml(text, "mine.yaml", collect=True), "mine")


def layer(text: str) -> NetworkLayer:
    return parsed(f"workload: {{layers: [{{{text}}}]}}").layers[0]


@pytest.mark.parametrize("name", shipped("workloads"))
def test_shipped_workloads(name):
    found = read(name)
    assert found.name == name
    assert found.source
    assert parsed(dump(found)) == found
    assert len({one.name for one in found.layers}) == len(found.layers)


def test_what_has_a_default_may_be_left_out():
    found = layer("input: 1x8x16x16, weight: 4x8x3x3")
    assert isinstance(found.problem, ConvProblem)
    assert (found.problem.stride, found.problem.padding, found.count) == ((1, 1), (0, 0), 1)
    assert str(found.problem) == "1x8x16x16 * 4x8x3x3, float32, channels_first"
    assert layer("a: [3, 4], b: [4, 5], count: 2") == NetworkLayer("layer 1", Product((3, 4), (4, 5)), count=2)
    assert layer("input: 1x8x16x16, weight: 4x8x1x3, padding: 0x1").problem.padding == (0, 1), "no hexadecimal number"
    assert layer("a: 3x4, b: 4x5, b_transposed: true") == NetworkLayer("layer 1", Product((3, 4), (4, 5), b_transposed=True))


CPU = torch.device("cpu")


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("transposed", [False, True])
def test_directions_are_the_gradients_of_autograd(layout, transposed):
    shape = (4, 3, 3, 3) if transposed else (6, 2, 3, 3)
    one = ConvProblem((2, 4, 7, 9), shape, (2, 1), (1, 1), (1, 1), (0, 0), 2, transposed, "float32", layout)
    forward, dgrad, wgrad = of_layer(NetworkLayer("l", one), ("fprop", "dgrad", "wgrad"), CPU)
    for case in (forward, dgrad, wgrad):
        assert error_of(case.run(), case.truth(), case.per_value) < 1e-6
        assert case.truth()[0].dtype == torch.float64
    assert [tuple(case.run()[0].shape) for case in (forward, dgrad, wgrad)] == [output_of(one), one.input, one.weight]
    assert forward.run()[0].is_contiguous(memory_format=torch.channels_last) == (layout == "channels_last")


def test_errors():
    exact = torch.tensor([4.0, -2.0], dtype=torch.float64)
    assert error_of([torch.tensor([4.0, -1.0])], [exact], True) == 0.25
    assert error_of([torch.tensor([float("nan"), -1.0])], [exact], True) == float("inf")
    assert error_of([torch.tensor([4.0, float("inf")])], [exact], False) == float("inf")
    assert error_of([], [exact], True) == float("inf")
    assert error_of([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)], True) == 0
    assert error_of([torch.tensor([7.0, 1.0])], [torch.tensor([4.0, 5.0], dtype=torch.float64)], False) == pytest.approx(
        5 / 41**0.5
    )


def test_a_model_given_in_eval_mode_stays_so(tmp_path):
    module = "torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()"
    (tmp_path / "normed.py").write_text(f"import torch\ndef make(): return {module}, torch.randn(2, 3)\n")
    model = load(f"{tmp_path / 'normed.py'}:make")
    (training,) = of_model(model, ["training"])
    with training.scope():
        training.run()
        assert not any(part.training for part in model.module.modules())
        assert error_of(training.results(), training.truth(), training.per_value) < 1e-6
    assert not model.module[1].running_mean.any()


def test_a_model_without_values_is_an_error(tmp_path):
    (tmp_path / "empty.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(3, 4, device='meta'), torch.randn(2, 3)\n"
    )
    with pytest.raises(EntryError, match="make': weight is on the meta device, which has no values"):
        load(f"{tmp_path / 'empty.py'}:make")


def test_a_models_phases(tmp_path):
    model = load(f"{model_file(tmp_path)}:make")
    model.module[1].eval()  # somebody has frozen it
    inference, training = of_model(model, ["inference", "training"])
    for case in (inference, training):
        with case.scope():
            first, second = case.results(), case.results()
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), "no dropout"
            assert error_of(first, case.truth(), case.per_value) < 1e-5
            case.run()
            assert model.module[1].training is False
            assert model.module[2].training is (case is training)
    assert training.results()[-1].shape == (sum(p.numel() for p in model.module.parameters()),)
