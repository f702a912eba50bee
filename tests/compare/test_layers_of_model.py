"""The layers of a model, as it really computes them."""

import torch
from comparisons import model_file
from torch import nn

from msctx.compare.layer_workload_file import NetworkLayer, Product, dump, parse
from msctx.compare.layers_of_model import capture
from msctx.compare.timed_cases import Model, load
from msctx.native.policy_and_choices import ConvProblem
from msctx.options.yaml_json_ini import parse as parse_yaml


def of(module: nn.Module, *args: torch.Tensor) -> Model:
    return Model("it", module, args, {})


def test_equal_layers_are_one_with_a_count(tmp_path):
    model = load(f"{model_file(tmp_path)}:make")
    found = capture(model)
    assert [(layer.name, layer.count) for layer in found.layers] == [("0", 1), ("4", 2), ("9", 1)]
    assert str(found.layers[1].problem) == "2x8x12x12 * 8x8x3x3, float32, padding 1, channels_first"
    assert found.layers[2] == NetworkLayer("9", Product((2, 8), (8, 4), b_transposed=True))
    assert parse(parse_yaml(dump(found), "it.yaml"), "it") == found


def test_every_kind_of_layer():
    model = nn.Sequential(
        nn.Conv2d(4, 8, (3, 5), stride=(1, 2), padding=(1, 2), dilation=(2, 1), groups=2),
        nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
        nn.Flatten(2),
        nn.Conv1d(4, 2, 3),
    )
    layers = capture(of(model, torch.randn(1, 4, 9, 9).contiguous(memory_format=torch.channels_last))).layers
    assert [layer.name for layer in layers] == ["0", "1", "3"]
    first, second, third = (layer.problem for layer in layers if isinstance(layer.problem, ConvProblem))
    assert (first.stride, first.padding, first.dilation, first.groups) == ((1, 2), (1, 2), (2, 1), 2)
    assert (first.layout, second.transposed, second.output_padding) == ("channels_last", True, (1, 1))
    assert (third.input[1:2], third.weight) == ((4,), (2, 4, 3))


def test_what_multiplies_and_is_no_layer_is_told():
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.rnn(x)[0][None]
            return self.out(nn.functional.scaled_dot_product_attention(y, y, y))

    found = capture(of(Fused(), torch.randn(3, 2, 4)))
    assert [layer.name for layer in found.layers] == ["out"]
    assert len(found.left_out) == 2
    assert all(f"# not in it: {line}" in dump(found) for line in found.left_out)
