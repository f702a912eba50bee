"""The session options of CANN's TensorFlow adapter, and what ATC shares with them (catalogue: session-*)."""

from functools import partial

from msctx.options.grammars import (
    AccelerateTrainMode,
    DeviceList,
    DumpLayer,
    DumpStep,
    DynamicDims,
    InOutPair,
    InputShape,
    ScopePasses,
    ShapeRange,
    StreamParallel,
)
from msctx.options.kinds import Bool, Choice, Flag, Int, Memory, Path, Text, TextFlag
from msctx.options.operators import Operators
from msctx.options.option import UNSET, Option

SOURCE = "CANN TF adapter session options"
ATC = "CANN ATC"
SESSION = ("session",)

session_option = partial(Option, groups=SESSION, source=SOURCE)
"""An option of sessions alone."""

# fmt: off
OPTIONS = (
    # basic
    session_option("graph_run_mode", Flag, default=1, example=0, ge="ge.graphRunMode",
        help="Whether run() of a session trains (1) or infers (0): with watched models in train or eval mode, and with gradients or "
             "in inference mode. What only makes sense in one of them, such as frozen_variable or gears of shapes, is refused in the "
             "other."),
    session_option("session_device_id", Int(0), example=1, ge="ge.session_device_id",
        help="The device that this session is bound to, so that one script can drive several, each with a session of its "
             "own; unset, the context's device_id holds, else $ASCEND_DEVICE_ID, else $DEVICE_ID."),
    # memory
    session_option("static_memory_policy", Choice({
            0: "each graph takes what it needs, when it runs", 2: "all graphs of a session share a pool for the largest",
            3: "segments that can grow, against fragmentation", 4: "2 and 3 together",
        }, {1: 2}), default=0, example=2, ge="ge.exec.staticMemoryPolicy",
        help="How compiled graphs get their memory (1 is the old form of 2). 2 and 4 exclude graphs that run at the same "
             "time."),
    session_option("external_weight", Bool, default=False, example=True, ge="ge.externalWeight",
        help="Maps the parameters of watched models from files named by their content (tmp_weight_<pid>_<session> in "
             "ASCEND_WORK_PATH, else in the working directory), so that models share one copy of equal weights until one is "
             "trained."),
    session_option("input_fusion_size", Int(0, 33554432), default=131072, example=262144, devices=("cuda", "ascend"),
        ge="ge.exec.input_fusion_size",
        help="Inputs of up to this many bytes are packed into one copy from host to device; 0 packs none. A CPU has no such "
             "copy."),
    # dynamic shapes
    session_option("input_shape", InputShape, example="data:1,1,40,-1;label:1,-1", ge="ge.inputShape",
        help="The shape of each input, -1 marking the dimensions whose sizes dynamic_dims lists: for every gear a graph of "
             "its own is compiled, and other shapes are errors. Needs dynamic_dims and dynamic_node_type."),
    session_option("dynamic_dims", DynamicDims, example="20,20;40,40;80,60", ge="ge.dynamicDims",
        help="The gears of input_shape: each has one size for every -1, in order. At least two of them, and it wins over "
             "dynamic_inputs_shape_range."),
    session_option("dynamic_node_type", Flag, example=1, ge="ge.dynamicNodeType",
        help="Which inputs input_shape applies to: 0 the batches of a data loader, 1 the arguments of the call."),
    session_option("ac_parallel_enable", TextFlag, default="0", example="1", ge="ac_parallel_enable",
        help='"1" lets operators that run on the host go on beside those of the device in graphs of changing shape, on a '
             "thread (and stream) of their own."),
    session_option("compile_dynamic_mode", Bool, default=False, example=True, ge="ge.compile_dynamic_mode",
        help="Compiles for any size in every dimension of every input (torch.compile with dynamic=True) instead of for the "
             "shapes seen. Excludes input_shape."),
    # mixed computing
    session_option("mix_compile_mode", Bool, default=False, example=True,
        help="Whether parts of a model that cannot be compiled may run eagerly between the compiled ones; otherwise such a "
             "part is an error. Needs iterations_per_loop=1."),
    session_option("in_out_pair_flag", Bool, default=True, example=False,
        help="Which side of the region in_out_pair is compiled: true what lies inside it, false what lies outside."),
    session_option("in_out_pair", InOutPair, example="[['conv1'], ['relu3']]",
        help="One region of a model, written as the names of its first and of its last operators in two lists; "
             "in_out_pair_flag sets which side of it is compiled. Needs mix_compile_mode=true."),
    # debugging
    session_option("enable_exception_dump", Choice({
            0: "nothing is saved", 1: "its inputs and arguments, and the names of those that it writes to",
            2: "its inputs and arguments, in CANN's folder for its lite dump",
        }), default=2, example=1, ge="ge.exec.enable_exception_dump",
        help="What to save of an operator that fails."),
    session_option("op_debug_config", Path, example="op_debug.cfg", ge="ge.exec.opDebugConfig", content="OP_DEBUG",
        help="A .cfg file that turns on debugging of generated kernels, for all operators or for those it lists: checks of "
             "memory bounds (oom), saved sources (dump_cce, dump_loc), builds without optimisation (ccec_O0) or with symbols "
             "(ccec_g), checks of synchronisation (check_flag)."),
    session_option("debug_dir", Path, example="kernel_debug", ge="ge.debugDir",
        help="The directory for kernel_meta, where op_debug_config and op_debug_level save generated sources; unset: "
             "$ASCEND_WORK_PATH, else the current directory."),
    session_option("export_compile_stat", Choice({
            0: "the file is never written", 1: "when the program ends normally", 2: "as soon as a graph is compiled",
        }), default=1, example=2, ge="ge.exportCompileStat",
        help="When to write fusion_result.json: how often each fusion pass of torch.compile matched: to "
             "$ASCEND_WORK_PATH/FE/<pid>, else to the current directory."),
    # precision tuning
    session_option("precision_mode_v2", Choice({
            "fp16": "as force_fp16: float16 for every operator that can",
            "origin": "as must_keep_origin_dtype: no casts at all",
            "cube_fp16in_fp32out": "matrix operators read float16, also of float32, and give float32; all else float32",
            "mixed_float16": "autocast to float16, by lists of operators",
            "mixed_bfloat16": "autocast to bfloat16, by lists of operators",
            "mixed_hif8": "autocast to HiFloat8, a dtype that torch does not have",
            "cube_hif8": "matrix operators in HiFloat8, a dtype that torch does not have",
        }, hints={
            "bf16": "mixed_bfloat16", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16", "fp32": "origin",
        }), example="mixed_bfloat16", ge="ge.exec.precision_mode_v2",
        help="precision_mode in newer words. Excludes precision_mode."),
    session_option("modify_mixlist", Path, example="mixlist.json", ge="ge.exec.modify_mixlist", content="MIXLIST",
        help="A JSON file that moves operators between the lists of mixed precision: those that are lowered (white-list), "
             "those kept (black-list) and those that go on in the dtype of the operator before them (gray-list): the widest "
             "of what operators have computed, which weights follow. Needs one of the mixed modes."),
    session_option("customize_dtypes", Path, example="dtypes.cfg", ge="ge.customizeDtypes", content="CUSTOMIZE_DTYPES",
        help="A .cfg file that fixes the dtypes of inputs and outputs of single operators, by name or by type, against "
             "precision_mode. Without effect where casts are forbidden altogether."),
    # precision comparison
    Option("session.enable_dump", Bool, default=False, example=True, ge="ge.exec.enableDump", source=SOURCE,
        help="Writes the data of the operators to dump_path while the program runs; dump_mode, dump_step, dump_data and "
             "dump_layer select what. Needs dump_path and excludes enable_dump_debug. The flat enable_dump is another, "
             "inert option."),
    session_option("dump_mode", Choice({
            "input": "what goes into an operator", "output": "what comes out of it", "all": "both, in files of their own",
        }), default="output", example="all", ge="ge.exec.dumpMode",
        help="Which side of an operator session.enable_dump writes."),
    session_option("enable_dump_debug", Bool, default=False, example=True, ge="ge.exec.enableDumpDebug",
        help="Looks for overflow while training: operators that turn finite inputs into inf or NaN have "
             "their data written to dump_path. Excludes session.enable_dump."),
    session_option("dump_debug_mode", Choice({
            "aicore_overflow": "in operators that compute",
            "atomic_overflow": "in operators that accumulate into memory, such as scatter_add",
            "all": "in both sorts of operators",
        }), default="all", example="atomic_overflow", ge="ge.exec.dumpDebugMode",
        help="Where enable_dump_debug looks for overflow. Newer NPUs (Atlas A2) take no other value than all."),
    session_option("dump_path", Path, example="dumps", ge="ge.exec.dumpPath",
        help="The directory for dumped data; msctx creates it if it does not exist."),
    session_option("dump_step", DumpStep, example="0|3-5|10", ge="ge.exec.dumpStep",
        help="The training steps whose data are dumped, single ones and ranges; unset: every step. A step ends with "
             "optimizer.step() or msctx.step()."),
    session_option("dump_data", Choice({
            "tensor": "the tensors themselves", "stats": "a table of smallest, largest, mean, norm, NaN and inf counts",
        }), default="tensor", example="stats", ge="ge.exec.dumpData",
        help="What a dump holds."),
    session_option("dump_layer", DumpLayer, example="net/conv1 net/fc",
        ge="ge.exec.dumpLayer",
        help="The modules or operators whose data are dumped, by name, a model itself by its class; unset: all of them."),
    session_option("quant_dumpable", TextFlag, default="0", example="1", ge="ge.quant_dumpable",
        help='"1" keeps the input of each quantisation as a separate tensor, so that dumps contain it, instead of letting '
             "fusion remove it."),
    session_option("fusion_switch_file", Path, example="fusion_switch.json", ge="ge.fusionSwitchFile", content="FUSION_SWITCH",
        help="A JSON file that switches fusion passes on or off by name, graph passes and kernel fusion apart; ALL stands "
             "for a whole group, and single names win over it."),
    session_option("buffer_optimize", Choice({
            "l2_optimize": "buffers are reused and work is ordered for locality",
            "off_optimize": "buffers and order are left as they are",
        }), default="l2_optimize", example="off_optimize", ge="ge.bufferOptimize",
        help="Whether compiled graphs reuse buffers and order their work so that data is found in the caches."),
    session_option("use_off_line", Bool, default=True, example=False,
        help="Whether the program runs on the accelerator at all; false makes the CPU its device, whatever device_target is."),
    # performance
    session_option("iterations_per_loop", Int(1), default=1, example=10,
        help="How often run() of a session calls its function before the host looks at the device again. More than one "
             "excludes mix_compile_mode."),
    session_option("hcom_parallel", Bool, default=True, example=False, ge="ge.hcomParallel",
        help="Whether gradients are reduced across devices while the backward pass still computes, or only after it, which "
             "can suit small models."),
    session_option("enable_small_channel", Flag, default=0, example=1, ge="ge.enableSmallChannel",
        help="Speeds up convolutions of images of at most four channels, such as the first of a model: on a CPU they run "
             "what conv_fprop_algo=normal and its like would take for them, where no other algorithm is asked for (2-D; "
             "often torch's own path); on CUDA they are measured. In CANN, inference (graph_run_mode=0) always has it on."),
    session_option("enable_scope_fusion_passes", ScopePasses,
        example="ScopeLayerNormPass,ScopeClipBoxesPass", ge="ge.exec.enableScopeFusionPasses",
        help="Switches fusion passes on that are off unless named: each replaces one pattern, such as a layer norm written "
             "out, by one operator."),
    session_option("stream_max_parallel_num", StreamParallel, example="DNN_VM_AICPU:2,AIcoreEngine:4",
        ge="ge.streamMaxParallelNum",
        help="How many operators each engine may run at the same time, one unless named: DNN_VM_AICPU means threads of the "
             "host, AIcoreEngine streams of the device."),
    session_option("is_tailing_optimization", Bool, default=False, example=True, ge="ge.exec.isTailingOptimization",
        help="Lets the optimizer update the parameters whose gradients have been reduced already while the last ones are "
             "still on their way between devices."),
    session_option("variable_placement", Choice({
            "Device": "in the memory of the device", "Host": "in host memory, copied when a module runs",
        }), default="Device", example="Host",
        help="Where the parameters of watched models live: Host saves device memory and costs time; it needs "
             "mix_compile_mode=true. On a CPU the two are one place."),
    session_option("frozen_variable", Bool, default=False, example=True,
        help="Compiles the weights into the graph as constants, so that the compiler may fold and repack them; for inference, "
             "in code that computes no gradients (torch.no_grad)."),
    session_option("graph_max_parallel_model_num", Int(1, 2**31 - 1), default=1, example=4, ge="ge.graphMaxParallelModelNum",
        help="How many threads may be in run() of a session at the same time; others wait. Above 1 for inference only; older CANN "
             "allows 8 at most. "
             "More than one excludes static_memory_policy 2 and 4."),
    # profiling
    session_option("profiling_mode", Bool, default=False, example=True, ge="ge.exec.profilingMode",
        help="Records with torch.profiler, and writes traces and a table of operators; profiling_options sets what "
             "is recorded and where it goes. A step ends with optimizer.step() or msctx.step()."),
    session_option("profiling_options", Text, ge="ge.exec.profilingOptions", content="PROFILING",
        default='{"output":"./","training_trace":"on","task_time":"on","hccl":"on","aicpu":"on",'
                '"aic_metrics":"PipeUtilization","msproftx":"off"}',
        example='{"output":"profiles","training_trace":"on","task_trace":"on"}',
        help="What profiling_mode records, as a JSON object in text. output: the directory. training_trace: steps. "
             "task_trace (or task_time): a table of operators, without shapes for l0. aicpu: Python's stacks. hccl, msproftx: "
             "communication and the program's own ranges, which the trace has in any case. fp_point, bp_point: no counterpart. "
             "aic_metrics: counters of an NPU. storage_limit caps the files. A key that is left out is off; a text "
             "with neither trace has both on."),
    # automatic tuning
    session_option("aoe_mode", Choice({
            "1": "sub-graphs: how operators are grouped and fused",
            "2": "single operators, such as matrix products and convolutions",
            "3": "known to older CANN alone",
            "4": "the size of the buckets in which gradients are reduced",
        }, {1: "1", 2: "2", 3: "3", 4: "4"}), example="2", ge="ge.jobType",
        help="What is tuned automatically."),
    session_option("work_path", Path, default="./", example="tuning", ge="ge.tuningPath",
        help="The directory for the results of aoe_mode, and for what aoe_tune_mode=offline records; it must exist and be writable."),
    session_option("aoe_config_file", Path, example="aoe.json", ge="ge.aoe_config_file", content="AOE",
        help="A JSON file that narrows aoe_mode to operators by name or type, and sets how hard to search "
             "(tune_optimization_level O1 or O2)."),
    # operator compilation
    session_option("op_compiler_cache_mode", Choice({
            "enable": "kernels are kept on disk and found again", "force": "kept ones are thrown away first, new ones are kept",
            "disable": "nothing is read or written",
        }), default="enable", example="disable", ge="ge.op_compiler_cache_mode",
        help="Whether compiled kernels are kept on disk, in op_compiler_cache_dir. torch has one cache for kernels and graphs; in "
             "one place enable_compile_cache wins there. torch_npu has its own for the kernels of an NPU."),
    session_option("op_compiler_cache_dir", Path, default="$HOME/atc_data", example="op_cache", ge="ge.op_compiler_cache_dir",
        help="The directory in which op_compiler_cache_mode keeps compiled kernels, in a folder kernel_cache; "
             "$ASCEND_CACHE_PATH counts when it is unset."),
    session_option("op_compiler_cache_dir.op_cache_ini", Path, example="op_cache.ini", content="OP_CACHE",
        help="An .ini file that limits the cache of op_compiler_cache_dir: max_op_cache_size is its size in MB (500 unless "
             "named, -1 for no limit), remain_cache_size_ratio the percentage that stays (50) when the oldest kernels are "
             "thrown away. It wins over kernel_cache/op_cache.ini, $ASCEND_MAX_OP_CACHE_SIZE and $ASCEND_REMAIN_CACHE_SIZE_RATIO, "
             "and limits the folder of enable_compile_cache, too."),
    # shared data loading
    session_option("local_rank_id", Int(0, 7), example=0,
        help="The rank of this process among those of its machine when one of them loads the data for all: rank 0 prepares "
             "the batches of torch's DataLoader and sends them, the others receive. Needs local_device_list."),
    session_option("local_device_list", DeviceList, example="0,1",
        help="The processes of this machine, by local_rank_id, that share the batches of the process of local_rank_id=0; others load "
             "their own. Needs local_rank_id."),
    # recovery from faults
    session_option("hccl_timeout", Int(0, 2**31 - 1), default=1836, example=600, ge="ge.exec.hcclExecuteTimeOut",
        help="Seconds that a collective waits for the other ranks before it fails; 0 waits for ever. Must be shorter than "
             "stream_sync_timeout, which is in milliseconds."),
    session_option("op_wait_timeout", Int(1), default=120, example=60, ge="ge.exec.opWaitTimeout",
        help="Seconds that an operator waits for those it depends on, across streams or threads, before that is an error."),
    session_option("op_execute_timeout", Int(1, 2**32 - 1), example=90, ge="ge.exec.opExecuteTimeout",
        help="Seconds that a single operator may run: the session's word for op_timeout. Unset, the device's own limit "
             "holds."),
    session_option("stream_sync_timeout", Int(-1, zero=False), default=-1, example=900000, ge="stream_sync_timeout",
        help="Milliseconds that waiting for a stream may take before it is an error; -1 waits for ever."),
    session_option("event_sync_timeout", Int(-1, zero=False), default=-1, example=600000, ge="event_sync_timeout",
        help="Milliseconds that waiting for an event may take before it is an error; -1 waits for ever."),
    # experimental
    session_option("experimental_accelerate_train_mode", AccelerateTrainMode, example="fast1|step|0.9",
        help="Trains in low precision first and in full precision later, in run() of a session. Written as speed|trigger|ratio: fast "
             "lowers to float16, fast1 to bfloat16; step ends the phase once $STEP_NOW is that share of $TOTAL_STEP (0.2 to 0.9), "
             "loss once $LOSS_NOW is within that multiple of $TARGET_LOSS (1.01 to 1.5). The program sets the variables."),
    # deprecated, with a meaning still
    session_option("op_debug_level", Choice({
            0: "nothing is kept", 1: "sources and their mapping to operators",
            2: "as 1, built with symbols and without optimisation", 3: "binaries and their descriptions",
            4: "binaries, descriptions, sources and what was fused",
        }), example=1, ge="ge.opDebugLevel",
        help="What to keep of generated kernels in debug_dir. Deprecated in favour of op_debug_config."),
    session_option("enable_data_pre_proc", Bool, default=False, example=True,
        help="Fetches batches ahead of the step on a thread of their own and copies them to the device meanwhile. "
             "Deprecated in CANN; iterations_per_loop above 1 rests on it."),
    session_option("variable_format_optimize", Bool, example=True, ge="ge.exec.variable_acc",
        help="Keeps the weights of 2-D and 3-D convolutions in watched models in the layout that the device likes best, which is "
             "channels_last on CPU and CUDA and a private format on an NPU; false keeps them contiguous. Deprecated in CANN."),
    Option("op_select_implmode", Choice({
            "high_precision": "accurate: wider accumulation, exact formulas; for a chosen list of operators",
            "high_performance": "fast; for a chosen list of operators",
            "high_precision_for_all": "accurate, for every operator that has the choice",
            "high_performance_for_all": "fast, for every operator that has the choice",
        }), default="high_performance", example="high_precision", defaults={"session": UNSET}, groups=("session", "atc"),
        ge="ge.opSelectImplmode", source=ATC,
        help="Whether operators that have an accurate and a fast way to compute take the one or the other. CANN keeps the "
             "lists (atc.builtin_impl_mode_ini); those for all may change between releases. Deprecated in favour of "
             "op_precision_mode, which wins."),
    Option("optypelist_for_implmode", Operators, example="Pooling,SoftmaxV2", groups=("session", "atc"),
        ge="ge.optypelistForImplmode", source=ATC,
        help="The types of operators, in Ascend's words, to which op_select_implmode (high_precision or high_performance) "
             "is limited. Deprecated with it in favour of op_precision_mode, which wins."),
    Option("atc.builtin_impl_mode_ini", Choice({
            "high_precision.ini": "the operators that high_precision makes accurate",
            "high_performance.ini": "the operators that high_performance makes fast",
            "high_precision_for_all.ini": "the operators that high_precision_for_all makes accurate",
            "high_performance_for_all.ini": "the operators that high_performance_for_all makes fast",
            "all_ops_impl_mode.ini": "every operator that has the choice, with its modes",
        }), example="high_precision.ini", source=ATC,
        help="One of the lists that CANN ships of operators and their modes of computing, by the name of its file. The "
             "lists are read-only: copy one, edit the copy and name it with op_precision_mode."),
    session_option("dynamic_input", Bool, default=False, example=True, ge="ge.exec.dynamicInput",
        help="Declares that input shapes change, so that graphs are compiled for the ranges of dynamic_inputs_shape_range. "
             "Deprecated in CANN; compile_dynamic_mode is the newer way."),
    session_option("dynamic_graph_execute_mode", Choice({
            "dynamic_execute": "one graph for whole ranges of shapes", "lazy_recompile": "one graph for each shape that comes",
        }), default="dynamic_execute", example="lazy_recompile", ge="ge.exec.dynamicGraphExecuteMode",
        help="With dynamic_input: how many graphs are compiled. Deprecated in CANN."),
    session_option("dynamic_inputs_shape_range", ShapeRange, example="getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]",
        ge="ge.exec.dataInputsShapeRange",
        help="With dynamic_input: the range of every dimension, as a number, a~b or -1 for any, getnext standing for "
             "batches of a data loader and data for arguments. Deprecated in CANN; dynamic_dims wins over it."),
    # deprecated and inert
    session_option("graph_memory_max_size", Memory, example="27917287424", ge="ge.graphMemoryMaxSize",
        replaced_by="max_device_memory",
        help="Formerly the size of the memory for a network's activations. CANN sizes it by itself now, and torch does too."),
    Option("session.variable_memory_max_size", Memory, example="5368709120", ge="ge.variableMemoryMaxSize",
        replaced_by="max_device_memory", source=SOURCE,
        help="Formerly the size of the memory for a session's variables. CANN sizes it by itself now, and torch does too. "
             "The flat variable_memory_max_size is another option."),
)
# fmt: on
