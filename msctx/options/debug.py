"""The options of set_context that help to find faults: graph files, prints, recorder, synchronous runs (catalogue: debug)."""

from msctx.options.kinds import Bool, Choice, OnOff, Path
from msctx.options.option import Option

# fmt: off
OPTIONS = (
    Option("save_graphs", Choice({
            0: "no graph files", 1: "what Dynamo captured, and its forward and backward graphs",
            2: "these, inductor's graphs and its generated code", 3: "all of that, inductor's trace folder, and drawings",
        }, {False: 0, True: 2}), default=0, example=1,
        help="How many of the graphs seen while compiling are written to save_graphs_path; true means 2. Code that runs "
             "eagerly writes nothing."),
    Option("save_graphs_path", Path, default=".", example="graphs",
        help="The directory for the files of save_graphs; it is made when missing, and each rank of a distributed run gets "
             "a folder of its own in it."),
    Option("deterministic", OnOff, default="OFF", example="ON", groups=("session",), also=("set_deterministic",),
        ge="ge.deterministic", documented=("deterministic", "session.deterministic"),
        help="ON makes every operator give the same bits for the same input from run to run on the same machine, by torch's "
             "own deterministic switches and those of the device's libraries; an operator that cannot do so raises. OFF "
             "takes these switches back and promises nothing."),
    Option("enable_dump", Bool, example=True, replaced_by="session.enable_dump with dump_path",
        help="Formerly switched the dump of operator data on. MindSpore drops the value, and so does msctx, with a warning."),
    Option("save_dump_path", Path, example="dumps", replaced_by="dump_path",
        help="Formerly the directory for dumped operator data. MindSpore drops the value, and so does msctx, with a warning."),
    Option("print_file_path", Path, example="prints.bin", is_output=True,
        help="The file to which msctx.Print writes tensors and text instead of the screen, in MindSpore's format; msctx.parse_print "
             "reads it. It must not be a directory; if the file exists already, a new one with the time in its name is written."),
    Option("env_config_path", Path, example="env_config.json", content="ENV_CONFIG",
        help="A JSON file that configures the recorder of what ran (its section rdr: enable, mode, path) and the reuse of "
             "memory between tensors (its section sys: mem_reuse)."),
    Option("env_config_path.rdr.enable", Bool, default=False, example=True,
        help="Records the last operators (shapes, module, algorithm, time) and writes them to env_config_path.rdr.path if the "
             "program fails."),
    Option("env_config_path.rdr.mode", Choice({
            1: "only if the program fails", 2: "if it fails, and when it ends normally",
        }), default=1, example=2,
        help="When the recorder of env_config_path.rdr.enable writes its files."),
    Option("env_config_path.rdr.path", Path, default="./", example="/tmp/recorder",
        help="The directory for the files of env_config_path.rdr.enable; each rank of a distributed run gets a folder of "
             "its own in it. MindSpore accepts absolute paths only."),
    Option("env_config_path.sys.mem_reuse", Bool, default=True, example=False, also=("env_config_path.sys.mem_Reuse",),
        help="Whether tensors whose lives do not overlap may share memory in compiled graphs and in the device's pool; "
             "false gives each its own, which helps to find who writes into whose memory."),
    Option("precompile_only", Bool, default=False, example=True,
        help="Compiles the model and does not run it: the call returns None, launches no kernel and changes no parameter. "
             "It fills a compile cache without training, and matters only for code that is compiled."),
    Option("reserve_class_name_in_scope", Bool, default=True, example=False,
        help="Whether the names of modules in dumps and profiles carry the class (Default/net-Net1/fc-Linear) "
             "or the attribute alone (Default/net/fc). Where it is set, profiles of profiling_mode have a range for each call of a "
             "module."),
    Option("pynative_synchronize", Bool, default=False, example=True, also=("runtime.launch_blocking",),
        help="Waits for the device after each eager operator, so that an error is raised at the line that caused it, and "
             "lets errors of the backward pass name the line of the forward. Slow; meant for debugging."),
    Option("debug_level", Choice({
            0: "torch's usual amount (RELEASE)", 1: "detailed logs, checks and the origin of each generated kernel (DEBUG)",
        }, {"RELEASE": 0, "DEBUG": 1}), default=0, example=1,
        help="How much the compiler keeps and logs about its work."),
)
# fmt: on
