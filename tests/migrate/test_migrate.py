"""`msctx migrate`: what is found in whole scripts, what is left out and why, and that nothing of a script is ever run."""

import json
import os
import sys

import pytest
from migrations import DATA, SCRIPTS, check_outputs

from msctx import migrate
from msctx.options import DEVICES


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_written_means_what_was_read_on_each_device_and_nothing_is_run(script, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    environment, modules = dict(os.environ), set(sys.modules)
    migration = migrate.read(str(script))
    check_outputs(migration, tmp_path)
    for device in (None, *DEVICES):
        migration = migrate.read(str(script), device)
        data = json.loads(json.dumps(migrate.as_dict(migration, migrate.planned(migration, device))))
        assert {row["option"] for row in data["plan"]["options"]} <= {s.option.name for s in migration.layer.settings.values()}
        assert all(row["origin"].startswith(f"{script}:") for row in data["plan"]["options"])
        assert len(data["calls"]) == len(migration.calls)
        assert [p["where"] for p in data["problems"]] == [str(p.mark) for p in migration.problems]
    assert [*(tmp_path / "empty").iterdir()] == []
    assert dict(os.environ) == environment
    assert not {name for name in set(sys.modules) - modules if name.partition(".")[0] in ("mindspore", "src", "zmq")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_found_is_what_was_read(script, monkeypatch):
    """Options, calls, and what is left out with its place: golden files (``UPDATE_GOLDEN=1`` writes them)."""
    monkeypatch.chdir(DATA)
    found = migrate.read(script.name)
    calls = [f"{c.mark.line}:{c.mark.column} {c.function}" for c in found.calls]
    text = "\n\n".join([migrate.as_yaml(found), "\n".join(calls), *map(str, found.problems)]) + "\n"
    text = text.replace(str(DATA), "HERE")
    golden = script.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


SETTINGS = """\
net.set_jit_config(ms.JitConfig(jit_level='O1'))  # enable_graph_kernel
ms.context._context().set_param('mode', 1)  # arguments of set_context
print(ms.context._context().get_param('mode'), os.environ["MS_ALLOC_CONF"])
os.environ["HCCL_CONNECT_TIMEOUT"] = "600"  # HCCL, CANN and torch_npu read theirs as before
os.environ["HCCL_EVENT_TIMEOUT"] = "600"  # op_wait_timeout=…, which sets it on Ascend
os.environ["ASCEND_WORK_PATH"] = "work"  # debug_dir=… wins over it
os.environ["DEVICE_ID"] = os.environ["RANK_ID"]  # use device_id=…
os.environ["RANK_TABLE_FILE"] = "hccl.json"  # torchrun
f = ms.jit(ms.jit(f), jit_level='O2')  # msctx.mindspore.jit takes
os.environ["MS_COMPILER_CACHE_ENABLE"] = "1"  # use enable_compile_cache=True
mindspore.communication.management.init()  # init_process_group()
net = ms.amp.auto_mixed_precision(ms.nn.Dense(init.get_rank(), 3), "O2")  # allow_mix_precision_fp16
model = train.Model(net, amp_level="O2", loss_scale_manager=manager)  # grad_scaler()
model, profiler = train.Model(net), ms.Profiler()  # profiling_mode
ds.config.set_prefetch_size(ds.config.get_prefetch_size())  # DataLoader
ms.parallel.set_algo_parameters(fully_use_devices=False)  # DistributedDataParallel
ms.runtime.set_memory("2GB")  # allocators have nothing like it
os.environ["MS_DEV_SAVE_GRAPHS"] = "1"  # use save_graphs=
os.environ["MS_DEV_SAVE_GRAPHS_PATH"] = "graphs"  # use save_graphs_path=
os.environ["MS_DEV_JIT_SYNTAX_LEVEL"] = "2"  # use jit_syntax_level=
os.environ["MS_DEV_PRECOMPILE_ONLY"] = "1"  # use precompile_only=
net.to_float(ms.float16)  # torch.autocast
model.train(1, data, dataset_sink_mode=True)  # leave dataset_sink_mode out
model.train(1, data)
net.layers[0].recompute()  # torch.utils.checkpoint
net.set_comm_fusion(2)  # bucket_cap_mb
ms.set_auto_parallel_context(comm_fusion={})  # bucket_cap_mb
"""
"""Lines, with what the note on each says."""


def test_what_is_no_option_is_named_with_what_to_do(write):
    imports = "import os, mindspore, mindspore as ms, mindspore.dataset as ds; from mindspore import train\n"
    found = migrate.read(write(imports + SETTINGS)).problems
    expected = {n: line.partition("  # ")[2] for n, line in enumerate(SETTINGS.splitlines(), 2) if "  # " in line}
    assert [p.mark.line for p in found] == [*expected]
    for problem in found:
        assert expected[problem.mark.line] in problem.text
