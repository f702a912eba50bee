# ruff: noqa
"""Every way to reach MindSpore's functions; each call sets another option (never run)."""

import mindspore
import mindspore as ms
import mindspore.context
import mindspore.context as direct
import msctx.mindspore as stand_in
import zmq
from mindspore import *
from mindspore import context
from mindspore import context as ctx
from mindspore import set_context
from mindspore.common import set_seed
from mindspore.context import set_context as set_it
from msctx import mindspore as stand_in_too
from somewhere.else_ import context as other

alias = ms.context
setter = alias.set_context
(pair, rest) = ms.context, 5

mindspore.set_context(mode=0)
mindspore.context.set_context(save_graphs=1)
direct.set_context(check_bprop=True)
stand_in.set_context(precompile_only=True)
stand_in_too.context.set_context(grad_for_scalar=True)
context.set_context(device_id=3)
ctx.set_context(debug_level=ctx.DEBUG)
set_context(support_binary=True)
set_it(op_timeout=60)
alias.set_context(jit_syntax_level=ms.STRICT)
setter(memory_optimize_level="O1")
pair.set_context(inter_op_parallel_num=2)
set_seed(7)
set_device("CPU")
set_recursion_limit()


def imported_here():
    import mindspore.context as inner

    inner.set_context(runtime_num_threads=4)


# none of these is MindSpore's
zmq.set_context(max_call_depth=1)
other.set_context(max_call_depth=2)


def shadowed(context, set_context):
    set_context(max_call_depth=4)


class Net:
    context = None

    def __init__(self, ctx):
        ctx.update(max_call_depth=5)


# whether this one is, nobody can say
Net({}).context.set_context(max_call_depth=6)
