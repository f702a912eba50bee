"""Public models run unmodified in GRAPH_MODE: no recompilation after the first step, and the results of eager code."""
# ruff: noqa: E501 (a row for each model)

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn

import msctx

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.full

TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = {"image_size": 32, "num_channels": 3}
DECODER = TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 64}


def words(draw: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 64, (2, 12), generator=draw)}


def pairs(draw: torch.Generator) -> dict[str, torch.Tensor]:
    return words(draw) | {"decoder_input_ids": torch.randint(0, 64, (2, 7), generator=draw)}


def pictures(draw: torch.Generator) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}


MODELS: dict[str, tuple[dict[str, Any], Callable[[torch.Generator], dict[str, torch.Tensor]]]] = {
    "Bert": (TEXT | SMALL, words),
    "Roberta": (TEXT | SMALL, words),
    "Electra": (TEXT | SMALL | {"embedding_size": 32}, words),
    "Albert": (TEXT | SMALL | {"embedding_size": 32}, words),
    "DistilBert": ({"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}, words),
    "GPT2": ({"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, words),
    "GPTNeoX": (TEXT, words),
    "OPT": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}, words),
    "Llama": (DECODER, words),
    "Mistral": (DECODER, words),
    "Qwen2": (DECODER, words),
    "Gemma": (DECODER | {"head_dim": 8}, words),
    "Phi": (DECODER, words),
    "T5": ({"vocab_size": 64, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}, pairs),
    "Bart": ({"vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0}, pairs),
    "ViT": (TEXT | SMALL | IMAGE | {"patch_size": 8}, pictures),
    "DeiT": (TEXT | SMALL | IMAGE | {"patch_size": 8}, pictures),
    "Dinov2": (TEXT | SMALL | IMAGE | {"patch_size": 8}, pictures),
    "Swin": (IMAGE | SMALL | {"patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "drop_path_rate": 0.0}, pictures),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, pictures),
    "RegNet": ({"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8}, pictures),
    "ConvNext": ({"num_channels": 3, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "drop_path_rate": 0.0}, pictures),
    "MobileNetV2": ({"depth_multiplier": 0.25}, pictures),
    "EfficientNet": ({"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "dropout_rate": 0.0, "drop_connect_rate": 0.0}, pictures),
    "Segformer": ({"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
                   "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "drop_path_rate": 0.0}, pictures),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Callable[[], dict[str, torch.Tensor]]]:
    settings, inputs = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    draw = torch.Generator().manual_seed(0)
    return getattr(transformers, f"{name}Model")(config), lambda: inputs(draw)


def step(model: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    result: torch.Tensor = model(**inputs)[0]
    (result.float() ** 2).mean().backward()
    # of outputs that nothing uses, compiled code has gradients of zero where eager code has none
    return result.detach(), {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_a_public_model_is_compiled_unmodified(name: str) -> None:
    model, inputs = made(name)
    eager, batches = deepcopy(model), [inputs() for _ in range(3)]
    expected = [step(eager, one) for one in batches]
    torch._dynamo.reset()
    with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=False) as ctx:
        found = [step(model, batches[0])]
        warm = len(ctx.graphs())
        found += [step(model, one) for one in batches[1:]]
        assert sum(row.operators for row in ctx.graphs()) > 10
        assert len(ctx.graphs()) - warm <= 1, ctx.graphs()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def code_as_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The graphs that inductor would compile, which takes minutes for all models, run as they are."""

    def run(graph: torch.fx.GraphModule, inputs: Any, **how: Any) -> Callable[[list[Any]], Any]:
        return make_boxed_func(graph.forward)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", run)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield


@pytest.mark.usefixtures("code_as_it_is_traced")
@pytest.mark.parametrize("name", MODELS)
def test_layers_of_a_public_model_take_what_follows_them(name: str) -> None:
    model, inputs = made(name)
    given = inputs()
    if "pixel_values" in given:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        given = {"pixel_values": given["pixel_values"].contiguous(memory_format=torch.channels_last)}
    torch._dynamo.reset()
    with torch.no_grad():
        right = model.eval()(**given)[0]
        with msctx.context(mode="GRAPH_MODE", conv_fprop_algo="normal", matmul_algo="strict", fallback="silent") as ctx:
            found = model(**given)[0]
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    takes = [row.epilogue not in ("", "shift") for row in ctx.choices()]
    assert all(takes) if name in ("ResNet", "RegNet", "MobileNetV2", "EfficientNet") else any(takes)
