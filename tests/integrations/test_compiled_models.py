"""Public models run unmodified in GRAPH_MODE: no recompilation after the first step, and the results of eager code."""
# ruff: noqa: E501 (a row for each model)

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
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
    "Albert": (TEXT | SMALL | {"embedding_size": 32}, words),
    "GPT2": ({"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, words),
    "Llama": (DECODER, words),
    "Qwen2": (DECODER, words),
    "T5": ({"vocab_size": 64, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}, pairs),
    "ViT": (TEXT | SMALL | IMAGE | {"patch_size": 8}, pictures),
    "Swin": (IMAGE | SMALL | {"patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "drop_path_rate": 0.0}, pictures),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, pictures),
    "ConvNext": ({"num_channels": 3, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "drop_path_rate": 0.0}, pictures),
    "EfficientNet": ({"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "dropout_rate": 0.0, "drop_connect_rate": 0.0}, pictures),
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
def test_a_public_model_is_compiled_unmodified(name):
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
