"""aoe_mode=4: two ranks find the size of the messages in which they reduce gradients, and keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import two_ranks

BODY = """
import json, os
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from msctx.memory import bucket_sizes, reductions

ROWS, LAYERS = 32 * 32 + 32, 12
ALONE, ALL = 0, 4 * ROWS * LAYERS
FILE = Path("found", bucket_sizes.NAME)

def parallel(bucket_cap_mb=0.004):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[nn.Linear(32, 32) for _ in range(LAYERS)]), bucket_cap_mb=bucket_cap_mb)
    step(model), step(model)  # DDP decides about its buckets in the first
    return model

def step(model):
    model.zero_grad()
    model(torch.full((2, 32), 1.0 + dist.get_rank())).square().sum().backward()

def sent(model):
    "The messages with gradients; the others are what ranks agree by"
    return [size for name, size in events(lambda: step(model)) if name == "allreduce" and size >= ROWS]

def slow(found, takes):
    "Seconds that backward passes seem to take: of each size of messages, on each rank"
    clock, search = [0.0], []
    def end(self, device, really=bucket_sizes.Search.end):
        clock[0] += takes(self.message)
        really(self, device)
    bucket_sizes.perf_counter = lambda: clock[0]
    bucket_sizes.Search.end = end

def open_scope(model, **more):
    return msctx.context(session={"aoe_mode": "4", "work_path": "found"}, **more).watch(model)

def tuned(model):
    "Backward passes until the size is found: what each of them sent"
    sizes = []
    with open_scope(model):
        while not FILE.exists() and len(sizes) < 100:
            sizes.append(sent(model))
            dist.barrier()
    return sizes
"""


@pytest.mark.full
def test_ranks_agree_upon_the_best_size_and_later_runs_know_it(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    two_ranks(
        tmp_path,
        BODY
        + """
def test(rank):
    model = parallel()
    step(model)
    expected = [p.grad.clone() for p in model.parameters()]
    bucket = model.bucket_bytes_cap
    # rank 0 by itself would take 2 buckets, rank 1 all of them: together 4 are best
    takes = {ALONE: (9, 9), 2 * bucket: (1, 9), 4 * bucket: (2, 2), 8 * bucket: (9, 8), ALL: (9, 1)}
    slow(model, lambda size: takes[size][rank])
    sizes = tuned(model)
    assert len(sizes) == len(takes) * bucket_sizes.ROUNDS, len(sizes)
    assert sizes[0] == [ROWS] * LAYERS and sizes[4] == [ROWS * LAYERS], sizes[:5]
    assert all(sum(each) == ROWS * LAYERS for each in sizes)
    (found,) = json.loads(FILE.read_text())["models"]
    assert (found["message"], found["ranks"], found["gradients"], found["bucket"]) == (4 * bucket, 2, ALL, bucket)
    assert found["seconds"] == {str(size): sum(each) for size, each in takes.items()}, found

    assert all(map(torch.equal, [p.grad for p in model.parameters()], expected))
    with open_scope(model):
        best = sent(model)
        assert best == sizes[2] and len(best) == LAYERS / 4, best
    assert sent(model) == [ROWS] * LAYERS

    for again in (parallel(), model):  # a later run, and a later scope
        with open_scope(again):
            assert sent(again) == best
            with msctx.context(**{"parallel_speed_up_json_path.enable_task_opt": True}):
                assert sent(again) == [ROWS * LAYERS]
            with msctx.context(hcom_parallel=False):
                assert sent(again) == best
            assert sent(again) == best
""",
    )


@pytest.mark.full
def test_bad_days(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    two_ranks(
        tmp_path,
        BODY
        + """
def test(rank):
    slow(None, lambda size: 1 + size)
    # one bucket: there is nothing to find
    whole = parallel(bucket_cap_mb=25)
    with open_scope(whole):
        assert sent(whole) == [ROWS * LAYERS] and not FILE.exists()
    dist.barrier()
    # a file of something else is left as it is, and every rank measures
    if not rank:
        FILE.write_text("[]")
    dist.barrier()
    model = parallel()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with open_scope(model):
            found = [sent(model) for _ in range(5 * bucket_sizes.ROUNDS + 1)]
    assert FILE.read_text() == "[]" and found[4] == [ROWS * LAYERS], found[-1]
    assert found[-1] == [ROWS] * LAYERS
    told = [str(one.message) for one in caught]
    assert any("bucket sizes are not kept" in text and bucket_sizes.NAME in text for text in told), told
    # ranks that know different sizes measure, too
    dist.barrier()
    if not rank:
        FILE.unlink()
    dist.barrier()
    msctx.reset_context()
    tuned(parallel())
    os.chdir(".." if rank else ".")
    again = parallel()
    with open_scope(again):
        assert len(sent(again)) > 1 and len(sent(again)) == LAYERS / 2
""",
    )
