"""Words of MindSpore and CANN that msctx has no option for: known for the sake of the message."""

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
        topo_sorting_mode distribute_config auto_tune_mode graph_exec_timeout oo_level optimization_switch
        lower_functional_ops
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
