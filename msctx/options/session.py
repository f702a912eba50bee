"""The session options of CANN's TensorFlow adapter, and what ATC shares with them (catalogue: session-*)."""

from functools import partial

from msctx.options.grammars import (
    AccelerateTrainMode,
    DeviceList,
    DumpStep,
    DynamicDims,
    InOutPair,
    InputShape,
    ShapeRange,
    StreamParallel,
)
from msctx.options.kinds import Bool, Choice, Flag, Int, Memory, Path, Text, TextFlag, TextList
from msctx.options.operators import Operators
from msctx.options.option import UNSET, Option

SOURCE = "CANN TF adapter session options"
ATC = "CANN ATC"
SESSION = ("session",)

session_option = partial(Option, groups=SESSION, source=SOURCE)
"""An option of sessions alone."""

OPTIONS = (
    # basic
    session_option(
        name="graph_run_mode",
        type=Flag,
        help="Whether a session trains (1) or infers (0); inference runs models in eval and inference mode and allows what "
        "only makes sense there, such as frozen_variable or gears of shapes.",
        default=1,
        ge="ge.graphRunMode",
        example=0,
    ),
    session_option(
        name="session_device_id",
        type=Int(0),
        help="The device that this session is bound to, so that one script can drive several, each with a session of its own; "
        "unset, the context's device_id holds.",
        ge="ge.session_device_id",
        example=1,
    ),
    # memory
    session_option(
        name="static_memory_policy",
        type=Choice(
            {
                0: "each graph takes what it needs, when it runs",
                2: "all graphs of a session share a pool for the largest",
                3: "segments that can grow, against fragmentation",
                4: "2 and 3 together",
            },
            aliases={1: 2},
        ),
        help="How compiled graphs get their memory (1 is the old form of 2). 2 and 4 exclude graphs that run at the same time.",
        default=0,
        ge="ge.exec.staticMemoryPolicy",
        example=2,
    ),
    session_option(
        name="external_weight",
        type=Bool,
        help="Maps the parameters of watched models from files named by their content (tmp_weight_<pid>_<session> in "
        "ASCEND_WORK_PATH, else in the working directory), so that models share one copy of equal weights until one is trained.",
        default=False,
        ge="ge.externalWeight",
        example=True,
    ),
    session_option(
        name="input_fusion_size",
        type=Int(0, 33554432),
        help="Inputs of up to this many bytes are packed into one copy from host to device; 0 packs none. A CPU has no such "
        "copy.",
        default=131072,
        devices=("cuda", "ascend"),
        ge="ge.exec.input_fusion_size",
        example=262144,
    ),
    # dynamic shapes
    session_option(
        name="input_shape",
        type=InputShape,
        help="The shape of each input, -1 marking the dimensions whose sizes dynamic_dims lists: for every gear a graph of its "
        "own is compiled, and other shapes are errors. Needs dynamic_dims and dynamic_node_type.",
        ge="ge.inputShape",
        example="data:1,1,40,-1;label:1,-1",
    ),
    session_option(
        name="dynamic_dims",
        type=DynamicDims,
        help="The gears of input_shape: each has one size for every -1, in order. At least two of them, and it wins over "
        "dynamic_inputs_shape_range.",
        ge="ge.dynamicDims",
        example="20,20;40,40;80,60",
    ),
    session_option(
        name="dynamic_node_type",
        type=Flag,
        help="Which inputs input_shape applies to: 0 the batches of a data loader, 1 the arguments of the call.",
        ge="ge.dynamicNodeType",
        example=1,
    ),
    session_option(
        name="ac_parallel_enable",
        type=TextFlag,
        help='"1" lets operators that run on the host go on beside those of the device in graphs of changing shape, on a '
        "thread (and stream) of their own.",
        default="0",
        ge="ac_parallel_enable",
        example="1",
    ),
    session_option(
        name="compile_dynamic_mode",
        type=Bool,
        help="Compiles for any size in every dimension of every input (torch.compile with dynamic=True) instead of for the "
        "shapes seen. Excludes input_shape.",
        default=False,
        ge="ge.compile_dynamic_mode",
        example=True,
    ),
    # mixed computing
    session_option(
        name="mix_compile_mode",
        type=Bool,
        help="Whether parts of a model that cannot be compiled may run eagerly between the compiled ones; otherwise such a "
        "part is an error. Needs iterations_per_loop=1.",
        default=False,
        example=True,
    ),
    session_option(
        name="in_out_pair_flag",
        type=Bool,
        help="Which side of the region in_out_pair is compiled: true what lies inside it, false what lies outside.",
        default=True,
        example=False,
    ),
    session_option(
        name="in_out_pair",
        type=InOutPair,
        help="One region of a model, written as the names of its first and of its last operators in two lists; "
        "in_out_pair_flag sets which side of it is compiled. Needs mix_compile_mode=true.",
        example="[['conv1'], ['relu3']]",
    ),
    # debugging
    session_option(
        name="enable_exception_dump",
        type=Choice(
            {
                0: "nothing is saved",
                1: "inputs, outputs, their descriptions and the workspace",
                2: "the inputs and what describes them, no more",
            }
        ),
        help="What is saved of an operator that fails.",
        default=2,
        ge="ge.exec.enable_exception_dump",
        example=1,
    ),
    session_option(
        name="op_debug_config",
        type=Path,
        help="A .cfg file that switches debugging of generated kernels on, for all operators or for those it lists: checks of "
        "memory bounds (oom), keeping the sources (dump_cce, dump_loc), building without optimisation (ccec_O0) or with "
        "symbols (ccec_g), checks of synchronisation (check_flag).",
        ge="ge.exec.opDebugConfig",
        content="OP_DEBUG",
        example="op_debug.cfg",
    ),
    session_option(
        name="debug_dir",
        type=Path,
        help="The directory for what op_debug_config and op_debug_level keep; unset, it is $ASCEND_WORK_PATH or the current "
        "directory.",
        ge="ge.debugDir",
        example="kernel_debug",
    ),
    session_option(
        name="export_compile_stat",
        type=Choice(
            {
                0: "the file is never written",
                1: "when the program ends normally",
                2: "as soon as a graph is compiled",
            }
        ),
        help="When it is written to fusion_result.json how often each fusion pass matched.",
        default=1,
        ge="ge.exportCompileStat",
        example=2,
    ),
    # precision tuning
    session_option(
        name="precision_mode_v2",
        type=Choice(
            {
                "fp16": "as force_fp16: float16 for every operator that can",
                "origin": "as must_keep_origin_dtype: no casts at all",
                "cube_fp16in_fp32out": "matrix operators read float16, also of float32, and give float32; all else float32",
                "mixed_float16": "autocast to float16, by lists of operators",
                "mixed_bfloat16": "autocast to bfloat16, by lists of operators",
                "mixed_hif8": "autocast to HiFloat8, a dtype that torch does not have",
                "cube_hif8": "matrix operators in HiFloat8, a dtype that torch does not have",
            }
        ),
        help="precision_mode in newer words. Excludes precision_mode.",
        ge="ge.exec.precision_mode_v2",
        example="mixed_bfloat16",
    ),
    session_option(
        name="modify_mixlist",
        type=Path,
        help="A JSON file that moves operators between the lists of mixed precision: those that are lowered (white-list), "
        "those kept (black-list) and those that go on in the dtype of the operator before them (gray-list): the widest of what "
        "operators have computed, which weights follow. Needs one of the mixed modes.",
        ge="ge.exec.modify_mixlist",
        content="MIXLIST",
        example="mixlist.json",
    ),
    session_option(
        name="customize_dtypes",
        type=Path,
        help="A .cfg file that fixes the dtypes of inputs and outputs of single operators, by name or by type, against "
        "precision_mode. Without effect where casts are forbidden altogether.",
        ge="ge.customizeDtypes",
        content="CUSTOMIZE_DTYPES",
        example="dtypes.cfg",
    ),
    # precision comparison
    Option(
        name="session.enable_dump",
        type=Bool,
        help="Writes the data of the operators to dump_path while the program runs; dump_mode, dump_step, dump_data and "
        "dump_layer select what. Needs dump_path and excludes enable_dump_debug. The flat enable_dump is another, inert option.",
        default=False,
        ge="ge.exec.enableDump",
        source=SOURCE,
        example=True,
    ),
    session_option(
        name="dump_mode",
        type=Choice(
            {
                "input": "what goes into an operator",
                "output": "what comes out of it",
                "all": "both, in files of their own",
            }
        ),
        help="Which side of an operator session.enable_dump writes.",
        default="output",
        ge="ge.exec.dumpMode",
        example="all",
    ),
    session_option(
        name="enable_dump_debug",
        type=Bool,
        help="Looks for overflow while training: operators that turn finite inputs into inf, NaN or saturated numbers have "
        "their data written to dump_path. Excludes session.enable_dump.",
        default=False,
        ge="ge.exec.enableDumpDebug",
        example=True,
    ),
    session_option(
        name="dump_debug_mode",
        type=Choice(
            {
                "aicore_overflow": "in operators that compute",
                "atomic_overflow": "in operators that accumulate into memory, such as scatter_add",
                "all": "in both sorts of operators",
            }
        ),
        help="Where enable_dump_debug looks for overflow. Newer NPUs (Atlas A2) take no other value than all.",
        default="all",
        ge="ge.exec.dumpDebugMode",
        example="atomic_overflow",
    ),
    session_option(
        name="dump_path",
        type=Path,
        help="The directory for dumped data; it must exist and be writable.",
        ge="ge.exec.dumpPath",
        example="dumps",
    ),
    session_option(
        name="dump_step",
        type=DumpStep,
        help="The training steps whose data are dumped, single ones and ranges; unset: every step. A step ends with "
        "optimizer.step() or msctx.step().",
        ge="ge.exec.dumpStep",
        example="0|3-5|10",
    ),
    session_option(
        name="dump_data",
        type=Choice(
            {
                "tensor": "the tensors themselves",
                "stats": "a table of smallest, largest, mean, norm, NaN and inf counts",
            }
        ),
        help="What a dump holds.",
        default="tensor",
        ge="ge.exec.dumpData",
        example="stats",
    ),
    session_option(
        name="dump_layer",
        type=TextList("names of operators separated by blanks", separator=" "),
        help="The modules or operators whose data are dumped, by name; unset: all of them.",
        ge="ge.exec.dumpLayer",
        example="net/conv1 net/fc",
    ),
    session_option(
        name="quant_dumpable",
        type=TextFlag,
        help='"1" keeps what goes into a quantisation as a tensor of its own, so that it can be dumped, instead of letting '
        "fusion remove it.",
        default="0",
        ge="ge.quant_dumpable",
        example="1",
    ),
    session_option(
        name="fusion_switch_file",
        type=Path,
        help="A JSON file that switches fusion passes on or off by name, graph passes and kernel fusion apart; ALL stands for "
        "a whole group, and single names win over it.",
        ge="ge.fusionSwitchFile",
        content="FUSION_SWITCH",
        example="fusion_switch.json",
    ),
    session_option(
        name="buffer_optimize",
        type=Choice(
            {
                "l2_optimize": "buffers are reused and work is ordered for locality",
                "off_optimize": "buffers and order are left as they are",
            }
        ),
        help="Whether compiled graphs reuse buffers and order their work so that data is found in the caches.",
        default="l2_optimize",
        ge="ge.bufferOptimize",
        example="off_optimize",
    ),
    session_option(
        name="use_off_line",
        type=Bool,
        help="Whether the program runs on the accelerator at all; false makes the CPU its device, whatever device_target is.",
        default=True,
        example=False,
    ),
    # performance
    session_option(
        name="iterations_per_loop",
        type=Int(1),
        help="How many training steps one run of a session makes before the host looks at the device again. More than one "
        "excludes mix_compile_mode.",
        default=1,
        example=10,
    ),
    session_option(
        name="hcom_parallel",
        type=Bool,
        help="Whether gradients are reduced across devices while the backward pass still computes, or only after it, which can "
        "suit small models.",
        default=True,
        ge="ge.hcomParallel",
        example=False,
    ),
    session_option(
        name="enable_small_channel",
        type=Flag,
        help="Speeds up convolutions of images of at most four channels, such as the first of a model: on a CPU they run what "
        "conv_fprop_algo=normal and its like would take for them, where no other algorithm is asked for (2-D; often torch's "
        "own path). In CANN, inference (graph_run_mode=0) always has it on.",
        default=0,
        ge="ge.enableSmallChannel",
        example=1,
    ),
    session_option(
        name="enable_scope_fusion_passes",
        type=TextList("names of passes separated by commas"),
        help="Switches fusion passes on that are off unless named: each replaces one pattern, such as a layer norm written "
        "out, by one operator.",
        ge="ge.exec.enableScopeFusionPasses",
        example="ScopeLayerNormPass,ScopeClipBoxesPass",
    ),
    session_option(
        name="stream_max_parallel_num",
        type=StreamParallel,
        help="How many operators each engine may run at the same time, one unless named: DNN_VM_AICPU means threads of the host, "
        "AIcoreEngine streams of the device.",
        ge="ge.streamMaxParallelNum",
        example="DNN_VM_AICPU:2,AIcoreEngine:4",
    ),
    session_option(
        name="is_tailing_optimization",
        type=Bool,
        help="Lets the optimizer update the parameters whose gradients have been reduced already while the last ones are still "
        "on their way between devices.",
        default=False,
        ge="ge.exec.isTailingOptimization",
        example=True,
    ),
    session_option(
        name="variable_placement",
        type=Choice(
            {
                "Device": "in the memory of the device",
                "Host": "in host memory, copied when a module runs",
            }
        ),
        help="Where the parameters of watched models live: Host saves device memory and costs time; it needs "
        "mix_compile_mode=true. On a CPU the two are one place.",
        default="Device",
        example="Host",
    ),
    session_option(
        name="frozen_variable",
        type=Bool,
        help="Compiles the weights into the graph as constants, so that the compiler may fold and repack them. For inference "
        "(graph_run_mode=0).",
        default=False,
        example=True,
    ),
    session_option(
        name="graph_max_parallel_model_num",
        type=Int(1, 2**31 - 1),
        help="How many threads may run a session's graphs at the same time, for inference; older CANN allows 8 at most. More "
        "than one excludes static_memory_policy 2 and 4.",
        default=1,
        ge="ge.graphMaxParallelModelNum",
        example=4,
    ),
    # profiling
    session_option(
        name="profiling_mode",
        type=Bool,
        help="Records a profile of what runs in the session with torch.profiler, or torch_npu's on an NPU; profiling_options "
        "sets what is recorded and where it goes.",
        default=False,
        ge="ge.exec.profilingMode",
        example=True,
    ),
    session_option(
        name="profiling_options",
        type=Text,
        help="What profiling_mode records, as a JSON object in text: output is the directory, training_trace, task_trace, "
        "aicpu and msproftx are on or off, fp_point and bp_point bound a step, aic_metrics chooses hardware counters, "
        "storage_limit caps the files.",
        default='{"output":"./","training_trace":"on","task_time":"on","hccl":"on","aicpu":"on",'
        '"aic_metrics":"PipeUtilization","msproftx":"off"}',
        ge="ge.exec.profilingOptions",
        content="PROFILING",
        example='{"output":"profiles","training_trace":"on","task_trace":"on"}',
    ),
    # automatic tuning
    session_option(
        name="aoe_mode",
        type=Choice(
            {
                "1": "sub-graphs: how operators are grouped and fused",
                "2": "single operators, such as matrix products and convolutions",
                "3": "known to older CANN alone",
                "4": "the size of the buckets in which gradients are reduced",
            },
            aliases={1: "1", 2: "2", 3: "3", 4: "4"},
        ),
        help="What is tuned automatically.",
        ge="ge.jobType",
        example="2",
    ),
    session_option(
        name="work_path",
        type=Path,
        help="The directory for the logs and results of aoe_mode; it must exist and be writable.",
        default="./",
        ge="ge.tuningPath",
        example="tuning",
    ),
    session_option(
        name="aoe_config_file",
        type=Path,
        help="A JSON file that narrows aoe_mode to operators by name or type, and sets how hard to search "
        "(tune_optimization_level O1 or O2).",
        ge="ge.aoe_config_file",
        content="AOE",
        example="aoe.json",
    ),
    # operator compilation
    session_option(
        name="op_compiler_cache_mode",
        type=Choice(
            {
                "enable": "kernels are kept on disk and found again",
                "force": "kept ones are thrown away first, new ones are kept",
                "disable": "nothing is read or written",
            }
        ),
        help="Whether compiled kernels are kept on disk, in op_compiler_cache_dir.",
        default="enable",
        ge="ge.op_compiler_cache_mode",
        example="disable",
    ),
    session_option(
        name="op_compiler_cache_dir",
        type=Path,
        help="The directory in which op_compiler_cache_mode keeps compiled kernels, in a folder kernel_cache; "
        "$ASCEND_CACHE_PATH counts when it is unset.",
        default="$HOME/atc_data",
        ge="ge.op_compiler_cache_dir",
        example="op_cache",
    ),
    session_option(
        name="op_compiler_cache_dir.op_cache_ini",
        type=Path,
        help="An .ini file that limits the cache of op_compiler_cache_dir: max_op_cache_size is its size in MB (500 unless named, "
        "-1 for no limit), remain_cache_size_ratio the percentage that stays (50) when the oldest kernels are thrown away. It "
        "wins over $ASCEND_MAX_OP_CACHE_SIZE and $ASCEND_REMAIN_CACHE_SIZE_RATIO.",
        content="OP_CACHE",
        example="op_cache.ini",
    ),
    # shared data loading
    session_option(
        name="local_rank_id",
        type=Int(0, 7),
        help="The rank of this process among those of its machine when one of them loads the data for all: rank 0 prepares the "
        "batches and sends them, the others receive. Needs local_device_list.",
        example=0,
    ),
    session_option(
        name="local_device_list",
        type=DeviceList,
        help="The devices of this machine to which the process of local_rank_id=0 sends its batches.",
        example="0,1",
    ),
    # recovery from faults
    session_option(
        name="hccl_timeout",
        type=Int(0, 2**31 - 1),
        help="Seconds that a collective waits for the other ranks before it fails; 0 waits for ever. Must be shorter than "
        "stream_sync_timeout, which is in milliseconds.",
        default=1836,
        ge="ge.exec.hcclExecuteTimeOut",
        example=600,
    ),
    session_option(
        name="op_wait_timeout",
        type=Int(1),
        help="Seconds that an operator waits for those it depends on, across streams or threads, before that is an error.",
        default=120,
        ge="ge.exec.opWaitTimeout",
        example=60,
    ),
    session_option(
        name="op_execute_timeout",
        type=Int(1),
        help="Seconds that a single operator may run: the session's word for op_timeout. Unset, the device's own limit holds.",
        ge="ge.exec.opExecuteTimeout",
        example=90,
    ),
    session_option(
        name="stream_sync_timeout",
        type=Int(-1, zero=False),
        help="Milliseconds that waiting for a stream may take before it is an error; -1 waits for ever.",
        default=-1,
        ge="stream_sync_timeout",
        example=900000,
    ),
    session_option(
        name="event_sync_timeout",
        type=Int(-1, zero=False),
        help="Milliseconds that waiting for an event may take before it is an error; -1 waits for ever.",
        default=-1,
        ge="event_sync_timeout",
        example=600000,
    ),
    # experimental
    session_option(
        name="experimental_accelerate_train_mode",
        type=AccelerateTrainMode,
        help="Trains in low precision first and in full precision later, written as speed|trigger|ratio: fast lowers to "
        "float16, fast1 to bfloat16; step ends the phase after that share of TOTAL_STEP (0.2 to 0.9), loss once the loss is "
        "within that multiple of TARGET_LOSS (1.01 to 1.5).",
        example="fast1|step|0.9",
    ),
    # deprecated, with a meaning still
    session_option(
        name="op_debug_level",
        type=Choice(
            {
                0: "nothing is kept",
                1: "sources and their mapping to operators",
                2: "as 1, built with symbols and without optimisation",
                3: "binaries and their descriptions",
                4: "binaries, descriptions, sources and what was fused",
            }
        ),
        help="What is kept of generated kernels, in debug_dir. Deprecated in favour of op_debug_config.",
        ge="ge.opDebugLevel",
        example=1,
    ),
    session_option(
        name="enable_data_pre_proc",
        type=Bool,
        help="Fetches batches ahead of the step on a thread of their own and copies them to the device meanwhile. Deprecated "
        "in CANN; iterations_per_loop above 1 rests on it.",
        default=False,
        example=True,
    ),
    session_option(
        name="variable_format_optimize",
        type=Bool,
        help="Converts weights once to the layout that the device likes best: channels_last or prepacked on CPU and CUDA, a "
        "private format on an NPU. Deprecated in CANN.",
        ge="ge.exec.variable_acc",
        example=True,
    ),
    Option(
        name="op_select_implmode",
        type=Choice(
            {
                "high_precision": "accurate: wider accumulation, exact formulas; for a chosen list of operators",
                "high_performance": "fast; for a chosen list of operators",
                "high_precision_for_all": "accurate, for every operator that has the choice",
                "high_performance_for_all": "fast, for every operator that has the choice",
            }
        ),
        help="Whether operators that have an accurate and a fast way to compute take the one or the other. CANN keeps the lists "
        "(atc.builtin_impl_mode_ini); those for all may change between releases. Deprecated in favour of op_precision_mode, "
        "which wins.",
        default="high_performance",
        defaults={"session": UNSET},
        groups=("session", "atc"),
        ge="ge.opSelectImplmode",
        source=ATC,
        example="high_precision",
    ),
    Option(
        name="optypelist_for_implmode",
        type=Operators,
        help="The types of operators, in Ascend's words, to which op_select_implmode (high_precision or high_performance) is "
        "limited. Deprecated with it in favour of op_precision_mode, which wins.",
        groups=("session", "atc"),
        ge="ge.optypelistForImplmode",
        source=ATC,
        example="Pooling,SoftmaxV2",
    ),
    Option(
        name="atc.builtin_impl_mode_ini",
        type=Choice(
            {
                "high_precision.ini": "the operators that high_precision makes accurate",
                "high_performance.ini": "the operators that high_performance makes fast",
                "high_precision_for_all.ini": "the operators that high_precision_for_all makes accurate",
                "high_performance_for_all.ini": "the operators that high_performance_for_all makes fast",
                "all_ops_impl_mode.ini": "every operator that has the choice, with its modes",
            }
        ),
        help="One of the lists that CANN ships of operators and their modes of computing, by the name of its file. The lists "
        "are read-only: copy one, edit the copy and name it with op_precision_mode.",
        source=ATC,
        example="high_precision.ini",
    ),
    session_option(
        name="dynamic_input",
        type=Bool,
        help="Says that input shapes change, so that graphs are compiled for the ranges of dynamic_inputs_shape_range. "
        "Deprecated in CANN; compile_dynamic_mode is the newer way.",
        default=False,
        ge="ge.exec.dynamicInput",
        example=True,
    ),
    session_option(
        name="dynamic_graph_execute_mode",
        type=Choice(
            {
                "dynamic_execute": "one graph for whole ranges of shapes",
                "lazy_recompile": "one graph for each shape that comes",
            }
        ),
        help="With dynamic_input: how many graphs are compiled. Deprecated in CANN.",
        default="dynamic_execute",
        ge="ge.exec.dynamicGraphExecuteMode",
        example="lazy_recompile",
    ),
    session_option(
        name="dynamic_inputs_shape_range",
        type=ShapeRange,
        help="With dynamic_input: the range of every dimension, as a number, a~b or -1 for any, getnext standing for batches "
        "of a data loader and data for arguments. Deprecated in CANN; dynamic_dims wins over it.",
        ge="ge.exec.dataInputsShapeRange",
        example="getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]",
    ),
    # deprecated and inert
    session_option(
        name="graph_memory_max_size",
        type=Memory,
        help="Formerly the size of the memory for a network's activations. CANN sizes it by itself now, and torch does too.",
        ge="ge.graphMemoryMaxSize",
        replaced_by="max_device_memory",
        example="27917287424",
    ),
    Option(
        name="session.variable_memory_max_size",
        type=Memory,
        help="Formerly the size of the memory for a session's variables. CANN sizes it by itself now, and torch does too. The "
        "flat variable_memory_max_size is another option.",
        ge="ge.variableMemoryMaxSize",
        replaced_by="max_device_memory",
        source=SOURCE,
        example="5368709120",
    ),
)
