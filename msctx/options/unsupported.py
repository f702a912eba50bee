"""Words of MindSpore, CANN, PyTorch and its frameworks that msctx has no option for: known for the sake of the message."""

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
    "the option enable_graph_kernel is False for jit_level O0, and True for O1 and O2": "jit_config jit_level",
    "deterministic=ON": """
        use_deterministic_algorithms are_deterministic_algorithms_enabled cudnn_deterministic cudnn.deterministic
        full_determinism torch.use_deterministic_algorithms
    """,
    "deterministic=ON raises where an operator has no deterministic kernel; deterministic_except names those to leave out": """
        deterministic=warn deterministic=warn_only warn_only deterministic_debug_mode
    """,
    "conv_fprop_algo=performance measures algorithms, as do its like for gradients": """
        benchmark cudnn_benchmark cudnn.benchmark benchmark_limit autotune mode=max-autotune-no-cudagraphs max_autotune
    """,
    "mode=GRAPH_MODE compiles, and graph_kernel_flags=--online_tuning=1 measures kernels": "mode=max-autotune",
    "mode=GRAPH_MODE compiles": """
        compile torch_compile torch.compile dynamo inductor compile_model jit mode=compile mode=default mode=reduce-overhead
        mode=jit backend
    """,
    "mode=PYNATIVE_MODE runs eagerly": "eager mode=eager",
    "precision_mode=allow_mix_precision_bf16": """
        bf16 bfloat16 amp autocast mixed_precision precision torch_dtype dtype precision_mode=bf16-mixed precision_mode=bf16
        precision_mode=bf16-true precision=bf16-mixed precision_mode=bfloat16 precision_mode=amp
    """,
    "precision_mode=allow_mix_precision_fp16": """
        fp16 float16 half precision_mode=16-mixed precision_mode=16 precision_mode=16-true precision_mode=fp16-mixed
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
        float32_matmul_precision set_float32_matmul_precision matmul_precision fp32_precision
    """,
    "runtime_num_threads": """
        threads num_threads set_num_threads n_threads nthreads intra_op_threads intraop_threads omp_num_threads mkl_num_threads
        intra_op_num_threads intra_op_parallel_num
    """,
    "inter_op_parallel_num": "num_interop_threads set_num_interop_threads inter_op_threads interop_threads inter_op_num_threads",
    "set device_id, or CUDA_VISIBLE_DEVICES itself, before the program starts": """
        cuda_visible_devices visible_devices ascend_rt_visible_devices gpu gpus gpu_id gpu_ids devices local_rank
    """,
    "device_target": "accelerator device device_type use_cpu",
    "max_device_memory": "memory_limit max_memory memory_fraction per_process_memory_fraction gpu_memory_utilization",
    "memory_optimize_level=O1": "checkpointing gradient_checkpointing activation_checkpointing recompute",
    "memory_offload=ON": "offload cpu_offload save_on_cpu activation_offloading",
    "mempool_block_size is the size by which the pool of device memory grows": "max_split_size_mb",
    "enable_dump_debug=true dumps operators that turn finite values into Inf or NaN": "detect_anomaly set_detect_anomaly",
    "seed": "manual_seed set_seed seed_everything random_seed",
    "profiling_mode": "profile profiler",
    "hccl_timeout": "ddp_timeout nccl_timeout timeout",
}
INSTEAD = {word: hint for hint, words in _BY_HINT.items() for word in words.split()}
"""A word of PyTorch or of a framework, or ``option=value``, in lower case → the option that is meant."""
