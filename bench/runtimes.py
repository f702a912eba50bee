"""Other runtimes as opponents for inference, where they are installed: ``pip install -c constraints.txt -e .[bench]``.

ONNX Runtime (https://onnxruntime.ai) and OpenVINO (https://docs.openvino.ai), which is told to keep float32: on a CPU with AMX it
would round to bfloat16.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable

import torch


def onnx_runtime(model: torch.nn.Module, images: torch.Tensor, threads: int) -> Callable[[torch.Tensor], torch.Tensor]:
    import onnx  # noqa: F401 (the exporter needs it)
    import onnxruntime

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the older one; the newer needs more packages
        torch.onnx.export(model, (images,), file, dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others are measured beside it
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def openvino(model: torch.nn.Module, images: torch.Tensor, threads: int) -> Callable[[torch.Tensor], torch.Tensor]:
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    made = openvino.convert_model(model, example_input=images, input=[tuple(images.shape)])
    compiled = openvino.Core().compile_model(made, "CPU", options)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def installed(model: torch.nn.Module, images: torch.Tensor, threads: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Name → what infers, for inputs of the shape and dtype of *images*: float32 in the channels-first format, or words."""
    found = {}
    for name, make in RUNTIMES.items():
        try:
            found[name] = make(model, images, threads)
        except ImportError:
            continue
        except Exception as error:
            print(f"{name} does not take the network: {error}", file=sys.stderr)
    return found


RUNTIMES = {"ONNX Runtime": onnx_runtime, "OpenVINO": openvino}
