"""Other runtimes as opponents for inference, where they are installed: ``pip install -c constraints.txt -e .[bench]``.

ONNX Runtime (https://onnxruntime.ai) and OpenVINO (https://docs.openvino.ai), which is told to keep float32: on a CPU with AMX it
would round to bfloat16.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

Infer = Callable[[torch.Tensor], torch.Tensor]


def onnx_runtime(model: torch.nn.Module, example: torch.Tensor, threads: int, file: Path) -> Infer:
    import onnx  # noqa: F401 (the exporter needs it)
    import onnxruntime

    if not file.exists():
        torch.onnx.export(model, (example,), str(file), dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others are measured beside it
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def openvino(model: torch.nn.Module, example: torch.Tensor, threads: int, file: Path) -> Infer:
    import openvino

    if not file.exists():
        made = openvino.convert_model(model, example_input=example, input=[tuple(example.shape)])
        openvino.save_model(made, str(file), compress_to_fp16=False)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(file), "CPU", options)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def installed(model: torch.nn.Module, example: torch.Tensor, threads: int, folder: Path, name: str) -> dict[str, Infer]:
    """Name → what infers, for inputs of the shape and dtype of *example*. A network is exported once, under *name* in *folder*."""
    found = {}
    for runtime, (make, ending) in RUNTIMES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the exporter is the older one; the newer needs more packages
                found[runtime] = make(model, example, threads, folder / f"{name}.{ending}")
        except ImportError:
            continue
        except Exception as error:
            print(f"{runtime} does not take the network: {error}", file=sys.stderr)
    return found


RUNTIMES = {"ONNX Runtime": (onnx_runtime, "onnx"), "OpenVINO": (openvino, "xml")}
