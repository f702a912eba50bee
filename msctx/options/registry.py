"""All options by name and spelling; checks values and turns them into a layer, or reports every problem at once."""

from __future__ import annotations

import copyreg
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msctx.errors import MOST, Diagnostic, Mark, Marks, OptionError, nearest
from msctx.options.documents import check, read_file, scalar
from msctx.options.kinds import BOOL, INVALID, IntKind, Keys, ValueKind, dotted, nowhere, show
from msctx.options.option import Option
from msctx.options.rules import YIELDING, Layer, Setting, exclusions

_BY_RELEASE = {
    "MindSpore 2.3.1": """
        jit_config op_debug_option cur_step_num save_checkpoint_steps need_ckpt last_triggered_step
        recompute_allgather_overlap_fagrad interleaved_matmul_comm interleaved_layernorm_comm
    """,
    "MindSpore 2.4": """
        exec_order hccl_watchdog enable_cluster_ops enable_pass disable_pass bias_add_comm_swap
        enable_allreduce_slice_to_reducescatter enable_interleave_split_concat_branch enable_interleave_parallel_branch
        enable_offloading_packed_experts enable_flash_attention_load_balance dataset_broadcast_opt_level
    """,
    "MindSpore 2.3": "topo_order",
    "MindSpore 2.6": "grad_fa_allgather_overlap allreduce_and_biasadd_swap pp_1f1b_overlap",
    "CANN's documentation of 2026": """
        compile_hybrid_mode all_tensor_not_empty input_batch_cpy aicore_num oo_constant_folding graph_compiler_cache_dir
        shape_generalization_mode auto_multistream_parallel_mode
    """,
    "CANN after 8.0.0": "variable_use_1g_huge_page",
    "the code of CANN's TensorFlow adapter": """
        enable_compress_weight compress_weight_conf HCCL_algorithm hcom_multi_mode device_type soc_config insert_op_file
        resource_config_path graph_parallel_option_path enable_graph_parallel graph_slice memory_optimization_policy
        topo_sorting_mode distribute_config auto_tune_mode graph_exec_timeout oo_level optimization_switch lower_functional_ops
    """,
}
LATER = {word: release for release, words in _BY_RELEASE.items() for word in words.split()}
"""Last part of the name → the release whose documents first have it."""
IGNORED = {
    "auto_tune_mode": "use aoe_tune_mode",
    "enable_auto_mixed_precision": "leave it out",
    "enable_sparse": "leave it out",
}
"""Keys of set_context that MindSpore itself ignores → what to do."""

_BY_HINT = {
    "deterministic=ON with deterministic_warn_only=true": "deterministic=warn deterministic=warn_only",
    "precision_mode_v2=mixed_float16": "precision_mode=mixed_float16",
    "the option enable_graph_kernel is False for jit_level O0, and True for O1 and O2": "jit_config jit_level",
    "deterministic=ON": """
        use_deterministic_algorithms are_deterministic_algorithms_enabled cudnn_deterministic cudnn.deterministic
        full_determinism torch.use_deterministic_algorithms
    """,
    "deterministic=ON raises where an operator has no deterministic kernel; deterministic_except names those to leave out": """
        warn_only deterministic_debug_mode
    """,
    "conv_fprop_algo=performance measures algorithms, as do the options for gradients": """
        benchmark cudnn_benchmark cudnn.benchmark benchmark_limit autotune mode=max-autotune-no-cudagraphs max_autotune
    """,
    "mode=GRAPH_MODE compiles, and graph_kernel_flags=--online_tuning=1 measures kernels": "mode=max-autotune",
    "mode=GRAPH_MODE compiles": """
        compile torch_compile torch.compile dynamo inductor compile_model jit mode=compile mode=default mode=reduce-overhead
        mode=jit backend dynamo_backend
    """,
    "mode=PYNATIVE_MODE runs eagerly": "eager mode=eager",
    "precision_mode=allow_mix_precision_bf16": """
        bf16 bf16_full_eval bfloat16 amp autocast mixed_precision precision torch_dtype dtype precision_mode=bf16-mixed
        precision_mode=bf16 precision_mode=bf16-true precision=bf16-mixed precision_mode=bfloat16 precision_mode=amp
    """,
    "precision_mode=allow_mix_precision_fp16": """
        fp16 fp16_full_eval float16 half precision_mode=16-mixed precision_mode=16 precision_mode=16-true precision_mode=fp16-mixed
        precision_mode=fp16 precision_mode=float16 precision_mode=half precision=16-mixed precision=16-true precision=16
        precision=fp16 mixed_precision=fp16 dtype=float16 torch_dtype=float16
    """,
    "precision_mode=force_fp32": """
        fp32 float32 precision_mode=32-true precision_mode=32 full_precision precision_mode=fp32 precision_mode=float32
    """,
    "precision_mode_v2=mixed_bfloat16": "precision_mode_v2=bf16 precision_mode_v2=bfloat16",
    "performance measures all algorithms": " ".join(
        f"{name}={word}"
        for name in ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo")
        for word in ("auto", "fastest", "benchmark")
    ),
    "set conv_allow_tf32 and matmul_allow_tf32": "tf32 allow_tf32 enable_tf32 cudnn_allow_tf32 cudnn.allow_tf32 precision_mode=tf32",
    "set matmul_allow_tf32, or matmul_algo=bf16x3": """
        float32_matmul_precision set_float32_matmul_precision matmul_precision fp32_precision jax_default_matmul_precision
        matmul_algo=high matmul_algo=highest matmul_algo=medium
    """,
    "runtime_num_threads": """
        threads num_threads set_num_threads n_threads nthreads intra_op_threads intraop_threads omp_num_threads mkl_num_threads
        intra_op_num_threads intra_op_parallel_num intra_op_parallelism_threads
    """,
    "inter_op_parallel_num": """
        inter_op_parallelism_threads num_interop_threads set_num_interop_threads inter_op_threads interop_threads inter_op_num_threads
    """,
    "set device_id, or CUDA_VISIBLE_DEVICES itself, before the program starts": """
        cuda_visible_devices visible_devices ascend_rt_visible_devices gpu gpus gpu_id gpu_ids devices local_rank
    """,
    "device_target": "accelerator device device_type use_cpu",
    "max_device_memory": """
        memory_limit max_memory memory_fraction per_process_memory_fraction per_process_gpu_memory_fraction gpu_memory_utilization
    """,
    "memory_optimize_level=O1": "checkpointing gradient_checkpointing activation_checkpointing recompute",
    "memory_offload=ON": "offload cpu_offload save_on_cpu activation_offloading",
    "mempool_block_size is the size by which the pool of device memory grows": "max_split_size_mb",
    "enable_dump_debug=true, with a dump_path, dumps operators that turn finite values into Inf or NaN": """
        detect_anomaly set_detect_anomaly debug_nans jax_debug_nans
    """,
    "seed": "manual_seed set_seed seed_everything random_seed",
    "profiling_mode": "profile profiler",
    "hccl_timeout": "ddp_timeout nccl_timeout timeout",
}
INSTEAD = {word: hint for hint, words in _BY_HINT.items() for word in words.split()}
"""A word of PyTorch or of a framework, or ``option=value``, in lower case → the option that is meant."""


_OPTIONS: dict[str, Option] = {}
OPTIONS: Mapping[str, Option] = MappingProxyType(_OPTIONS)
_SPELLINGS: dict[str, Option] = {}
_DICTIONARIES: set[str] = set()
"""Keys that hold a dictionary of options: gpu_config, session, device_context.gpu …"""
_NAMES = ["preset"]
_GE: dict[str, Option] = {}
copyreg.pickle(Option, lambda option: (option_of, (option.name,)))


def declare(options: Iterable[Option]) -> None:
    """Add the options of a theme to the tables."""
    for option in options:
        _OPTIONS[option.name] = option
        _GE.update({option.ge: option} if option.ge else {})
        for spelling in option.spellings:
            _SPELLINGS[spelling] = option
            parts = spelling.split(".")
            groups = {".".join(parts[:i]) for i in range(1, len(parts))} - _DICTIONARIES
            _DICTIONARIES.update(groups)
            _NAMES.extend([spelling, *sorted(groups)])


def find(spelling: str) -> Option | None:
    """The option a dotted spelling means, or ``None``."""
    return _SPELLINGS.get(spelling)


def is_dictionary(spelling: str) -> bool:
    """Whether a dotted spelling names a dictionary of options."""
    return spelling in _DICTIONARIES


def option_of(spelling: str) -> Option:
    """The option a dotted spelling means; an unknown one raises :class:`OptionError` with the nearest name."""
    if (option := find(spelling)) is None:
        raise OptionError([_unknown(spelling)])
    return option


def known_to_ge(key: str) -> bool:
    """Whether a key of CANN's graph engine is an option here."""
    return key in _GE


def named(name: str) -> Option:
    """:func:`option_of` for any name a person may come with: CANN's key and the environment's spelling, too."""
    spelling = name.removeprefix("MSCTX_").lower().replace("__", ".") if name.startswith("MSCTX_") else name
    level, key = ge_key(spelling)
    return _GE.get(key or name) or option_of(level or spelling)


def ge_name(key: str) -> str:
    """A key of CANN's in its own spelling, where a variable of the environment had to write it in one case."""
    return next((known for known in _GE if known.lower() == key.lower()), key)


def _instead(spelling: str, value: Any) -> str:
    return INSTEAD.get(f"{spelling}={show(value)}".replace("'", "").lower(), "")


def _unknown(spelling: str, where: str = "", mark: Mark | None = None, value: Any = "") -> Diagnostic:
    parts, instead = spelling.split("."), _instead(spelling, value) or INSTEAD.get(spelling.lower(), "")
    group = next((g for n in reversed(range(1, len(parts))) if (g := ".".join(parts[:n])) in _DICTIONARIES), "")
    text, allowed, hint = "unknown option", "", ""
    if spelling in IGNORED:
        text = f"MindSpore ignores it, and msctx has no such option; {IGNORED[spelling]}"
    elif later := next((LATER[part] for part in parts if part in LATER), ""):
        text, hint = f"{later} has it, and msctx has no such option", instead or "leave it out"
    elif group:
        key = parts[group.count(".") + 1]
        keys = list(dict.fromkeys(s[len(group) + 1 :].partition(".")[0] for s in _SPELLINGS if s.startswith(f"{group}.")))
        text, allowed = f"{group} has no such key", ", ".join(keys) if len(keys) < 20 else ""
        hint = (
            " or in ".join([f"{key} stands outside it", *_SPELLINGS[key].groups]) if key in _SPELLINGS else nearest(key, keys)
        )
    elif spelling.startswith("context.") and (rest := spelling.removeprefix("context.")) in _SPELLINGS:
        hint = rest
    else:
        hint = instead or nearest(spelling.lower(), _NAMES) or "`msctx options` lists them all"
    return Diagnostic(spelling, text, where, allowed, hint, mark)


def make_layer(values: Mapping[str, Any], origin: str, marks: Marks | None = None) -> Layer:
    """Check what was set in one place.

    Args:
        values: options by name; groups (``gpu_config={...}``), namespaces (``session={...}``) and what a file or a text holds
            (``graph_kernel_flags={"opt_level": 2}``) are dictionaries, and dotted names (``"gpu_config.conv_allow_tf32"``)
            mean the same.
        origin: the place, as messages name it: ``"set_context"``, ``"train.py:12"``.
        marks: for a file, where each value stands.

    Raises:
        OptionError: with every problem found; nothing was changed.
    """
    if not values:
        return Layer()
    reading = _Reading(origin)
    marks = marks or nowhere
    written_out: dict[str, dict[str, Any]] = {}
    for path, spelling, value in _flatten(values, ()):
        level, key = ge_key(spelling)
        if key:
            written_out.setdefault(level, {})[key] = path, value
        else:
            reading.add(path, spelling, value, marks)
    for level, found in written_out.items():  # the dictionary is where its first key is
        paths = {(key,): path for key, (path, _) in found.items()} | {(): next(iter(found.values()))[0]}
        reading.add((), level, {key: value for key, (_, value) in found.items()}, _moved(marks, paths))
    problems = [replace(one, mark=reading.places.get(one.path)) for one in contradictions(reading.settings, origin)]
    if reading.problems or problems:
        raise OptionError([*reading.problems, *problems])
    return Layer(reading.settings)


def _moved(marks: Marks, paths: Mapping[Keys, Keys]) -> Marks:
    return lambda at: marks(paths.get(at[:1], paths[()]))


class _Reading:
    """Collects settings and problems while one place is read."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.problems: list[Diagnostic] = []
        self.settings: dict[str, Setting] = {}
        self.places: dict[str, Mark | None] = {}

    def add(
        self, path: Keys, spelling: str, value: Any, marks: Marks, *, via: str = "", origin: str = "", is_text: bool = False
    ) -> None:
        """One value.

        Args:
            path: where it stands among *marks*.
            spelling: the same as one dotted name.
            via: the spelling of the file or text that holds it: then the same option beside that wins.
            origin: the place that is shown in place of the mark.
            is_text: everything there is text.
        """
        if len(self.problems) >= MOST:
            return
        option = _GE.get(path[-1]) if "ge_options." in via else _SPELLINGS.get(spelling)
        mark = marks(path)
        if value is INVALID or (via and spelling in self.settings and not self.settings[spelling].via):
            return
        if option is None:
            if spelling in _DICTIONARIES:
                self._problem(spelling, "needs a dictionary of options", mark, "{key: value}")
            else:
                self.problems.append(_unknown(spelling, self.origin, marks((*path, "")), value))
            return
        given = _from_words(option, value) if is_text else value
        value, wrong = check(option.type, given, (spelling,), self.origin, lambda at: marks((*path, *at)))
        if wrong:
            hint = _instead(option.name, given)
            self.problems += [replace(one, suggestion=hint or one.suggestion) for one in wrong]
            return
        first = self.settings.get(spelling)
        if first is not None and first.value != value and bool(first.via) == bool(via):
            self._problem(spelling, f"{value!r} contradicts {first.value!r}; it is set twice", mark)
            return
        if option.is_output:
            value = str(Path(mark.file).parent / Path(value).expanduser()) if mark else value
            if os.path.isdir(os.path.expanduser(value)):
                self._problem(spelling, f"{value!r} is a directory", mark, "the path of a file")
        self.places[spelling] = mark
        setting = Setting(option, spelling, value, origin or (str(mark) if mark else self.origin), via=via)
        self.settings[spelling] = setting
        if option.content and value:
            self._open(setting, mark)
        if option.name.startswith("ge_options."):  # its keys that are options here win over these
            for key, text in value.items():
                if key in _GE:
                    self.add((*path, key), f"{spelling}.{key}", text, marks, via=spelling, is_text=True)

    def _problem(self, path: str, text: str, mark: Mark | None, allowed: str = "", hint: str = "") -> None:
        self.problems.append(Diagnostic(path, text, self.origin, allowed, hint, mark))

    def _open(self, setting: Setting, mark: Mark | None) -> None:
        """Read the file that a value names, or the text that it is; its keys may be options themselves."""
        spelling, value, form = setting.spelling, setting.value, setting.option.format
        assert form is not None
        text, file = value, f"{setting.origin}: {spelling}"
        if form.is_file:
            # Beside the file, as the entry of an experiment; os.path answers for what cannot be a path, too
            if mark is not None and os.path.exists(beside := Path(mark.file).parent / value):
                value = str(beside)
            (text, why_not), file = read_file(value), value
            if why_not:
                self._problem(spelling, f"{value!r} cannot be read: {why_not}", mark)
                return
        document = form.parse(text, file)
        for problem in document.problems:
            path = ".".join(filter(None, (spelling, problem.path)))
            self.problems.append(replace(problem, path=path, where=problem.where or self.origin))
        holds_options = spelling in _DICTIONARIES
        self.settings[spelling] = replace(setting, value=value, content=None if holds_options else document.data)
        for (_, *keys), inner, found in _flatten(document.data, (spelling,)) if holds_options else ():
            if any("." in str(key) for key in keys):
                self.problems.append(_unknown(inner, self.origin, document.mark((*keys, ""))))
                continue
            origin = "" if form.is_file else setting.origin
            self.add(tuple(keys), inner, found, document.mark, via=spelling, origin=origin, is_text=not form.is_file)


def from_text(spelling: str, text: Any, *, bits: bool = False) -> Any:
    """The value that a bare word of the environment or the command line means for an option; what is no text, as it is.

    A word for a text option is that text: there are no quotes that would make ``5`` a text. *bits*: 1 and 0 mean true and false.
    """
    option = find(spelling)
    if not isinstance(text, str) or ge_key(spelling)[1] or (option is not None and option.is_text):
        return text
    return text == "1" if bits and option is not None and option.kind is BOOL and text in ("0", "1") else scalar(text)


_GE_WORDS = {"jit_compile": {"2": "auto", "1": "true", "0": "false"}}
"""Option → the graph engine's words for its values."""


def _from_words(option: Option, text: Any) -> Any:
    """The value of an option where everything is text, as in CANN's own keys and in flags: ``"1"``, ``"true"``, ``"16"``."""
    if not isinstance(text, str):
        return text
    text = _GE_WORDS.get(option.name, {}).get(text, text)
    if isinstance(option.kind, ValueKind) and option.kind.takes_truth and not option.choices:
        return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}.get(text.lower(), text)
    is_number = isinstance(option.kind, IntKind) or any(isinstance(choice, int) for choice in option.choices)
    return int(text) if is_number and re.fullmatch(r"-?[0-9]{1,18}", text) else text


def ge_key(spelling: str) -> tuple[str, str]:
    """A key of CANN's own that is written out (``ge_options.session.ge.x``) as the dictionary it stands in, and its name there."""
    level, found, key = spelling.partition(".ge.") if "ge_options." in spelling else ("", "", "")
    return (level, f"ge.{key}") if found and level in _SPELLINGS else ("", "")


def _flatten(values: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """The values of dictionaries within dictionaries: path of keys, the same as one dotted name, value."""
    for key, value in values.items():
        path = (*prefix, key)
        spelling = dotted(path)
        if isinstance(value, Mapping) and spelling in _DICTIONARIES:
            yield from _flatten(value, path)
        else:
            yield path, spelling, value


def contradictions(settings: Mapping[str, Setting], origin: str) -> Iterator[Diagnostic]:
    """Two values for one option, and excluded pairs, in one layer and for the same device."""
    seen: dict[tuple[str, str | None, int], Setting] = {}
    for setting in settings.values():
        first = seen.setdefault((setting.option.name, setting.device, setting.rank), setting)
        if first.value != setting.value:
            text = f"{setting.value!r} contradicts {first.spelling}={first.value!r}; they are one option: set one of them"
            yield Diagnostic(setting.spelling, text, origin)
    yield from exclusive(settings, origin)


def exclusive(settings: Mapping[str, Setting], origin: str) -> Iterator[Diagnostic]:
    """The pairs that the sources forbid in one layer."""
    for one, other, why in exclusions([s for s in settings.values() if s.option.name in YIELDING]):
        place = f" from {other.origin}" if other.origin != one.origin else ""
        yield Diagnostic(one.spelling, f"cannot be set together with {other.spelling}={other.value!r}{place}: {why}", origin)
