"""What of the environment and of the command line may be written down: other people read records, and secrets stand in both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msctx.options import carried
from msctx.options.layers import PREFIX, RESERVED, is_option

FAMILIES = {
    "ACL": "DEVICE_SYNC_TIMEOUT OP_INIT_MODE STREAM_TIMEOUT",
    "ASCEND": "CACHE_PATH DEVICE_ID DUMP_PATH DUMP_SCENE GLOBAL_EVENT_ENABLE GLOBAL_LOG_LEVEL HOME_PATH LAUNCH_BLOCKING"
    " MAX_OP_CACHE_SIZE OPP_PATH REMAIN_CACHE_SIZE_RATIO RT_VISIBLE_DEVICES SLOG_PRINT_TO_STDOUT WORK_PATH",
    "ATEN": "CPU_CAPABILITY",
    "CUBLAS": "EMULATE_DOUBLE_PRECISION EMULATE_SINGLE_PRECISION EMULATION_SPECIAL_VALUES_SUPPORT_MASK EMULATION_STRATEGY"
    " FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT WORKSPACE_CONFIG",
    "CUBLASLT": "WORKSPACE_SIZE",
    "CUDA": "CACHE_DISABLE CACHE_MAXSIZE CACHE_PATH DEVICE_MAX_CONNECTIONS DEVICE_ORDER DISABLE_PTX_JIT FORCE_PTX_JIT HOME"
    " LAUNCH_BLOCKING MODULE_LOADING PATH VISIBLE_DEVICES",
    "CUDNN": "CONV_WSCAP_DBG HOME LOGLEVEL_DBG PATH",
    "DNNL": "CPU_ISA_HINTS DEFAULT_FPMATH_MODE MAX_CPU_ISA PRIMITIVE_CACHE_CAPACITY VERBOSE",
    "GOMP": "CPU_AFFINITY SPINCOUNT STACKSIZE",
    "DISABLE": "PTXAS_OPT",
    "HCCL": "ALGO BUFFSIZE CONNECT_TIMEOUT DETERMINISTIC EVENT_TIMEOUT EXEC_TIMEOUT OP_EXPANSION_MODE",
    "KMP": "AFFINITY BLOCKTIME DETERMINISTIC_REDUCTION DUPLICATE_LIB_OK FORCE_REDUCTION HW_SUBSET LIBRARY STACKSIZE",
    "MKL": "BLAS_COMPUTE_MODE CBWR DEBUG_CPU_TYPE DISABLE_FAST_MM DOMAIN_NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS"
    " FAST_MEMORY_LIMIT INTERFACE_LAYER NUM_STRIPES NUM_THREADS SERVICE_FORCE_INTEL THREADING_LAYER VERBOSE",
    "NCCL": "ALGO BUFFSIZE CROSS_NIC CUMEM_ENABLE DEBUG IB_DISABLE IB_HCA LAUNCH_MODE MAX_NCHANNELS MIN_NCHANNELS NTHREADS"
    " NVLS_ENABLE P2P_DISABLE P2P_LEVEL PROTO SHM_DISABLE SOCKET_IFNAME",
    "NVIDIA": "TF32_OVERRIDE",
    "OMP": "CANCELLATION DISPLAY_ENV DYNAMIC MAX_ACTIVE_LEVELS NESTED NUM_THREADS PLACES PROC_BIND SCHEDULE STACKSIZE"
    " THREAD_LIMIT WAIT_POLICY",
    "ONEDNN": "CPU_ISA_HINTS DEFAULT_FPMATH_MODE MAX_CPU_ISA PRIMITIVE_CACHE_CAPACITY VERBOSE",
    "PYTORCH": "ALLOC_CONF CUDA_ALLOC_CONF JIT NO_CUDA_MEMORY_CACHING NO_NPU_MEMORY_CACHING NPU_ALLOC_CONF"
    " NVML_BASED_CUDA_CHECK TENSOREXPR TUNABLEOP_ENABLED TUNABLEOP_FILENAME TUNABLEOP_TUNING",
    "TE": "PARALLEL_COMPILER",
    "TORCH": "ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT COMPILE_DEBUG COMPILE_DISABLE"
    " CUDNN_USE_HEURISTIC_MODE_B CUDNN_V8_API_DISABLED CUDNN_V8_API_LRU_CACHE_LIMIT DEVICE_BACKEND_AUTOLOAD DISTRIBUTED_DEBUG"
    " LINALG_PREFER_CUSOLVER LINALG_PREFER_HIPSOLVER LOGS MKLDNN_MATMUL_MIN_DIM MKLDNN_MATMUL_MIN_SIZE"
    " NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT NCCL_DUMP_ON_TIMEOUT NCCL_HEARTBEAT_TIMEOUT_SEC"
    " NCCL_NAN_CHECK NCCL_TRACE_BUFFER_SIZE NCCL_WAIT_TIMEOUT_DUMP_MILSEC SHOW_CPP_STACKTRACES",
    "TORCHDYNAMO": "DISABLE SUPPRESS_ERRORS VERBOSE",
    "TORCHINDUCTOR": "AUTOGRAD_CACHE BATCH_INVARIANT CACHE_DIR COMPILE_THREADS COMPREHENSIVE_PADDING COORDINATE_DESCENT_TUNING"
    " CPP_DYNAMIC_THREADS CPP_ENABLE_UNSAFE_MATH_OPT_FLAG CPP_MARCH CPP_WEIGHT_PREPACK CPP_WRAPPER CUDAGRAPHS DETERMINISTIC"
    " EMULATE_DIVISION_ROUNDING EMULATE_PRECISION_CASTS FORCE_DISABLE_CACHES FORCE_LAYOUT_OPT FREEZING FX_GRAPH_CACHE"
    " LAYOUT_OPTIMIZATION MAX_AUTOTUNE MAX_AUTOTUNE_CONV_BACKENDS MAX_AUTOTUNE_GEMM MAX_AUTOTUNE_GEMM_BACKENDS"
    " MAX_AUTOTUNE_POINTWISE MEMORY_PLANNING PATTERN_MATCH_DEBUG PERMUTE_FUSION PERSISTENT_REDUCTIONS SHAPE_PADDING USE_FAST_MATH",
}
"""The environment variables that change what torch computes or how: the names, after the prefix, whose values are recorded."""
NAMES = {"PYTHONHASHSEED", *(f"{family}_{name}" for family, names in FAMILIES.items() for name in names.split())}
UNRECORDED = "(set; its value is not recorded)"
"""Of a variable of these families that is not listed: that it is there may matter; its value may be a secret."""

_ARGUMENT = re.compile(r"^((?:--sweep=)?(?:experiment|(?:experiment\.)?args(?:\.[^=]*)?)=).*", re.DOTALL)
"""An argument of an entry as a word of the command line, or all of them (``args={…}``)."""
_FAMILY = re.compile(rf"({'|'.join([*FAMILIES, PREFIX[:-1]])})_")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what bears on the numerics; values only under names that are known to hold no secret."""
    names = [name for name in sorted(environment) if name in NAMES or _FAMILY.match(name)]
    found = {name: environment.get(name) for name in names}  # another thread may have taken one away since
    return {name: text if _is_known(name) else UNRECORDED for name, text in found.items() if text is not None}


def _is_known(name: str) -> bool:
    is_ours = name in RESERVED and name != carried.VARIABLE  # long; a run has a plan.json
    return is_ours or name in NAMES or (name.startswith(PREFIX) and is_option(name))


def command_line(words: Sequence[str]) -> list[str]:
    """A command line without what may be secret in it: the arguments of an entry (``args.x=``), and all values of other programs."""
    program, *rest = words or [""]
    if _is_ours(program):
        return [program, *(_ARGUMENT.sub(r"\1…", word) for word in rest)]
    return [program, *(re.sub(r"=.*", "=…", word, flags=re.DOTALL) if word.startswith("-") else "…" for word in rest)]


def _is_ours(program: str) -> bool:
    path = Path(program)
    return path.name in ("msctx", "msctx.exe") or path == Path(__file__).parent / "__main__.py"
