"""Ranks that differ in what they compute find out, and nobody waits for anybody."""

from __future__ import annotations

import contextlib
import re
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import torchrun
from torch.distributed import HashStore

import msctx
from msctx.context import agreement
from msctx.native import distributed
from msctx.options import Layer, carried


def forget() -> None:
    agreement._begun.clear()
    agreement._compared.clear()


class Ranks:
    """A store, and this process as one rank after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.store: Any = HashStore()
        self.rank = 0
        monkeypatch.setattr(distributed, "run", lambda: 1)
        monkeypatch.setattr(distributed, "size", lambda: size)
        monkeypatch.setattr(distributed, "rank", lambda: self.rank)
        monkeypatch.setattr(distributed, "store", lambda: self.store)

    def enter(self, rank: int, **options: Any) -> None:
        self.rank = rank
        forget()
        with msctx.context(**options):
            pass


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    forget()
    yield Ranks(monkeypatch, 4)
    forget()


@pytest.mark.filterwarnings("error")
def test_those_that_agree_report_nothing(ranks: Ranks) -> None:
    for rank in range(4):
        ranks.enter(rank, deterministic="ON", seed=rank, seed_by_rank=rank > 1)


def test_the_table_names_the_switch_the_ranks_and_where_it_is_from(ranks: Ranks) -> None:
    ranks.enter(0, deterministic="ON")
    ranks.enter(1, deterministic="ON")
    with pytest.warns(msctx.MsctxWarning) as warned:
        ranks.enter(3, deterministic="OFF")
    text = str(warned[0].message)
    assert "torch.deterministic: ranks 0-1: True (rank 0: deterministic=ON from with-block at" in text
    assert "; rank 3: False (deterministic=OFF from with-block at" in text
    assert "rank 2: no context that decides numerics yet" in text
    assert "torch.num_threads" not in text, "in which they do not differ"


def test_ranks_that_would_send_different_messages_find_out(ranks: Ranks) -> None:
    ranks.enter(0, **{"parallel_speed_up_json_path.enable_task_opt": True})
    with pytest.raises(msctx.StrictError, match=r"models\.gradients_bundled: rank 0: True .*rank 1: False"):
        ranks.enter(1, deterministic="ON", strict=True)


class Counted:
    """A store that counts what is asked of it; with *refuses*, it loses the connection at those."""

    def __init__(self, store: Any, refuses: tuple[str, ...] = ()) -> None:
        self._store, self._refuses, self.asked = store, refuses, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        if name in self._refuses:
            raise RuntimeError("connection reset by peer")
        return getattr(self._store, name)


def test_what_a_rank_asks_does_not_grow_with_the_ranks_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(size: int, values: int) -> int:
        ranks, asked = Ranks(monkeypatch, size), []
        store = ranks.store
        for rank in range(size):
            ranks.store = Counted(store)
            with pytest.warns(msctx.MsctxWarning) if rank else contextlib.nullcontext():
                ranks.enter(rank, **({"runtime_num_threads": 1 + rank % values} if rank else {"deterministic": "ON"}))
            asked.append(ranks.store.asked)
        return max(asked)

    forget()
    assert most(40, 1) == most(20, 1) <= 5
    assert most(40, 30) == most(20, 20)
    forget()


def test_the_last_of_many_that_differ_knows_of_all(ranks: Ranks) -> None:
    def train() -> None:
        for rank, value in enumerate(("ON", "OFF", "OFF", "OFF")):
            ranks.enter(rank, deterministic=value)

    with pytest.warns(msctx.MsctxWarning) as warned:
        train()
    texts = [str(one.message) for one in warned]
    assert len(texts) == 3
    assert "ranks 2-3: no context that decides numerics yet" in texts[0]
    assert "rank 0: True (deterministic=ON from with-block at" in texts[2]
    assert "; ranks 1-3: False (rank 3: deterministic=OFF from with-block at" in texts[2]


def test_more_values_than_are_read(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "READ", 1)

    def train() -> None:
        for rank in range(4):
            ranks.enter(rank, runtime_num_threads=rank + 1)

    with pytest.warns(msctx.MsctxWarning) as warned:
        train()
    text = str(warned[-1].message)
    assert "rank 0: 1 (runtime_num_threads=" in text
    assert "rank 1: 2 (runtime_num_threads=" in text
    assert "rank 3: 4 (runtime_num_threads=" in text
    assert text.endswith("  rank 2: something else again")


def test_a_difference_that_is_known_counts_though_the_store_is_lost_then(ranks: Ranks) -> None:
    ranks.enter(0, deterministic="ON")
    ranks.store = Counted(ranks.store, refuses=("get",))
    with pytest.raises(msctx.StrictError, match=r"torch\.deterministic: rank 0: True .*; rank 3: False"):
        ranks.enter(3, deterministic="OFF", strict=True)


def test_the_first_rank_was_killed_while_it_entered(ranks: Ranks) -> None:
    store = ranks.store
    ranks.store = Counted(store, refuses=("append",))
    with pytest.warns(msctx.MsctxWarning, match="is unknown"):
        ranks.enter(0, deterministic="ON")
    ranks.store = store
    with pytest.warns(msctx.MsctxWarning, match=r"torch\.deterministic: rank 0: True .*; rank 3: False"):
        ranks.enter(3, deterministic="OFF")


@pytest.mark.filterwarnings("error")
def test_machines_of_other_names_are_no_difference(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        monkeypatch.setattr("platform.node", lambda rank=rank: f"node{rank}")
        ranks.store = Counted(ranks.store)
        ranks.enter(rank, deterministic="ON")
        assert ranks.store.asked == 3, "two for the values, one for the place"


def test_ranks_of_one_start_are_compared_whatever_their_agents_count(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of this node has failed before, none of the other node; they have a new store."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    ranks.enter(0, deterministic="ON")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.warns(msctx.MsctxWarning, match="ranks differ in what they compute"):
        ranks.enter(1, deterministic="OFF")


@pytest.mark.parametrize("how", [{"strict": True}, {"fallback": "error"}])
def test_it_is_an_error_where_that_is_asked_for(ranks: Ranks, how: dict[str, Any]) -> None:
    ranks.enter(0, deterministic="ON")
    before = msctx.state()
    with pytest.raises(msctx.StrictError, match="ranks differ in what they compute"):
        ranks.enter(1, deterministic="OFF", **how)
    with pytest.raises(msctx.StrictError), msctx.context(deterministic="OFF", **how):
        pytest.fail("who tries again is compared again")
    assert msctx.state() == before


@pytest.mark.filterwarnings("error")
def test_what_a_rank_observes_or_keeps_is_its_own_affair(ranks: Ranks, tmp_path: Path) -> None:
    """A context that decides no numerics is not the one that is compared, and only the first one is."""
    ranks.enter(0, print_file_path=str(tmp_path / "printed"))
    ranks.enter(1, deterministic="ON")
    ranks.enter(2, deterministic="ON", max_device_memory="8GB")
    with msctx.context(deterministic="OFF"):
        pass


@pytest.mark.filterwarnings("error")
def test_another_version_of_torch_is_reported(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.enter(0, deterministic="ON")
    monkeypatch.setattr("torch.__version__", "2.0")
    with pytest.raises(msctx.MsctxWarning, match=r"torch: rank 0: .*; rank 1: 2\.0"):
        ranks.enter(1, deterministic="ON")


@pytest.mark.parametrize("nothing", [{}, {"seed": 3}])
@pytest.mark.parametrize("loser", [0, 1])
def test_options_that_one_rank_has_lost(ranks: Ranks, nothing: dict[str, Any], loser: int) -> None:
    def train() -> None:
        for rank in range(2):
            ranks.enter(rank, **(nothing if rank == loser else {"deterministic": "ON"}))

    with pytest.warns(msctx.MsctxWarning) as warned:
        train()
    (text,) = [str(one.message) for one in warned]
    assert f"rank {loser}: False (as found)" in text
    assert f"rank {1 - loser}: True (deterministic=ON from with-block at" in text


def test_what_was_entered_before_the_group_is_compared_by_the_next_context(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torchrun there is no store before."""

    def enter(rank: int, **options: Any) -> None:
        forget()
        ranks.rank = rank
        monkeypatch.setattr(distributed, "run", lambda: 0)
        with msctx.context(**options):
            monkeypatch.setattr(distributed, "run", lambda: 1)
            with msctx.context():
                pass

    enter(0, deterministic="OFF")
    with pytest.raises(msctx.StrictError, match=r"torch\.deterministic: rank 0: False .*rank 1: True"):
        enter(1, deterministic="ON", strict=True)


@pytest.fixture
def launched(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """As by `msctx run --max-restarts`, before there is a process group."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer(), store=["localhost", 1, "msctx/ranks/x/0"]))
    monkeypatch.setattr(distributed, "run", lambda: 0)
    launchers = HashStore()
    monkeypatch.setattr(distributed, "launchers_store", lambda: launchers)
    return ranks


def test_ranks_of_one_start_are_compared_before_there_is_a_group(launched: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    launched.enter(0, deterministic="ON")
    monkeypatch.setenv("RANK", "1")
    with pytest.warns(msctx.MsctxWarning) as warned:
        launched.enter(1, deterministic="OFF")
    text = str(warned[0].message)
    assert "torch.deterministic: rank 0: True (deterministic=ON from with-block at" in text
    assert "ranks 2-3: no context that decides numerics yet" in text


@pytest.mark.parametrize("is_lost", [False, True])
def test_they_are_compared_in_their_group_all_the_same(launched: Ranks, monkeypatch: pytest.MonkeyPatch, is_lost: bool) -> None:
    if is_lost:
        monkeypatch.setattr(distributed, "launchers_store", lambda: Counted(None, ("append", "compare_set")))
    with pytest.warns(msctx.MsctxWarning, match="is unknown") if is_lost else contextlib.nullcontext():
        launched.enter(0, deterministic="ON")
    monkeypatch.setattr(distributed, "run", lambda: 1)
    with msctx.context(deterministic="ON"):
        pass
    with pytest.warns(msctx.MsctxWarning, match=r"torch\.deterministic: rank 0: True .*; rank 3: False"):
        launched.enter(3, deterministic="OFF")


def test_a_rank_that_comes_to_another_plan_than_the_launching_process(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = (msctx.explain(deterministic=value, seed=3) for value in ("ON", "OFF"))
    strict = msctx.explain(deterministic="ON", seed=4, strict=True)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer(), **{agreement.HANDED: agreement.handed(there)}))
    agreement.check_launched(there)
    with pytest.warns(msctx.MsctxWarning) as warned:
        agreement.check_launched(here)
    text = str(warned[0].message)
    assert text.startswith("the same options give another plan on rank 2 than where it was launched:\n")
    assert "torch.deterministic: launching process: True (deterministic=ON from explain); rank 2: False" in text
    assert "deterministic on cpu: launching process: 'ON', honoured (explain); rank 2: 'OFF', honoured (explain)" in text
    assert "seed" not in text, "in which they do not differ"
    with pytest.raises(msctx.StrictError, match=r"rng\.seed: launching process: .*3.*; rank 2: .*4"):
        agreement.check_launched(strict)


@pytest.mark.filterwarnings("error")
def test_a_rank_that_was_handed_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer()))
    agreement.check_launched(msctx.explain(deterministic="ON"))


@pytest.mark.usefixtures("base")
def test_options_of_set_context_that_one_rank_has_lost(ranks: Ranks) -> None:
    def train() -> None:
        for ranks.rank in range(2):
            forget()
            msctx.set_context(**({} if ranks.rank else {"deterministic": "ON"}))
            msctx.reset_context()

    with pytest.warns(msctx.MsctxWarning, match=r"torch\.deterministic: rank 0: True .*rank 1: False \(as found\)"):
        train()


@pytest.mark.filterwarnings("error")
def test_a_rank_may_have_contexts_for_itself(ranks: Ranks) -> None:
    """At another place of the program: rank 0 seeds something, and rank 3 evaluates; all train alike."""
    for rank in range(4):
        if rank == 0:
            ranks.enter(0, seed=1)
        ranks.enter(rank, deterministic="ON")
        if rank == 3:
            with msctx.context(deterministic="OFF"):
                pass


@pytest.mark.filterwarnings("error")
def test_the_same_options_from_two_places_are_the_same(ranks: Ranks) -> None:
    ranks.enter(0, deterministic="ON")
    context = msctx.context(deterministic="ON")
    ranks.rank = 1
    forget()
    with context:
        pass


def test_contexts_that_decide_nothing_ask_once(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(agreement, "ask", lambda *_, decides: asked.append(decides) or ([], []))
    for options in ({}, {"seed": 1}, {}, {"deterministic": "ON"}, {}, {"deterministic": "OFF"}):
        with msctx.context(**options):
            pass
    assert asked == [False, True]


def test_who_has_no_answer_does_not_wait_again(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(distributed, "within", lambda seconds, call: asked.append(seconds))
    with pytest.warns(msctx.MsctxWarning, match="is unknown"), msctx.context(), msctx.context(deterministic="ON"):
        pass
    assert asked == [agreement.SECONDS]


def test_a_store_that_does_not_answer_holds_nobody_up(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(agreement, "SECONDS", 0.05)
    monkeypatch.setattr(ranks.store.__class__, "append", lambda *_: never.wait(60), raising=False)
    with pytest.warns(msctx.MsctxWarning, match="whether all ranks have the same options is unknown"):
        ranks.enter(0, deterministic="ON")
    never.set()


def test_a_store_that_is_lost(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Any:
        raise RuntimeError("connection reset by peer")

    monkeypatch.setattr(distributed, "store", lost)
    with pytest.warns(msctx.MsctxWarning, match="is lost, or gave no answer within 2 s"):
        ranks.enter(0, deterministic="ON", strict=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("has_group", "first"),
    [(False, {}), (True, {"deterministic": "OFF"})],
    ids=["the agent's store, lost options", "the store of the process group, other options"],
)
def test_real_ranks(tmp_path: Path, has_group: bool, first: dict[str, str]) -> None:
    """Before the process group is there, the store of torchrun's agent serves. Rank 2 comes when the first two have long been
    inside, and rank 3 never: nobody waits for them."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
            import os, pathlib, time, warnings, msctx
            rank = int(os.environ["RANK"])
            if {has_group}:
                import torch.distributed
                torch.distributed.init_process_group("gloo")
            while rank == 2 and not all(os.path.exists(f"report.{{other}}") for other in (0, 1)):
                time.sleep(0.05)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                for options in [{first}, {{"deterministic": "ON"}}, {{"runtime_num_threads": 3}}][rank : rank + 1]:
                    with msctx.context(**options):
                        pass
            (report := pathlib.Path(f"{{rank}}.part")).write_text("\\n".join(str(one.message) for one in found))
            report.rename(f"report.{{rank}}")
        """)
    )
    done = subprocess.run(
        torchrun(4, tmp_path / "train.py"), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    reports = [(tmp_path / f"report.{rank}").read_text() for rank in range(4)]
    (told,) = filter(None, reports[:2])
    assert "ranks differ in what they compute" in told
    assert re.search(r"torch\.deterministic: rank 0: False .*rank 1: True", told), told
    assert ("  ranks 2-3: no context that decides numerics yet" in told) == bool(first), told
    assert re.search(r"torch\.num_threads: .*rank 2: 3 ", reports[2]), reports[2]
    # a rank that has lost its options is found where it was the first at this place
    assert re.search(rf"  {'rank' if first else 'rank(s 0,)?'} 3: no context that decides numerics yet", reports[2]), reports[2]
    assert not reports[3]


@pytest.fixture
def other_version(tmp_path: Path) -> Path:
    """A folder with this package, of another version."""
    package, other = Path(msctx.__file__).parent, tmp_path / "other"
    (other / "msctx").mkdir(parents=True)
    for one in package.iterdir():
        (other / "msctx" / one.name).symlink_to(one)
    for one in ("configs", "kernels"):
        (other / one).symlink_to(package.parent / one)
    (other / "msctx" / "_version.py").unlink()
    (other / "msctx" / "_version.py").write_text('__version__ = "0.0.9"\n')
    return other


@pytest.mark.full
@pytest.mark.parametrize("strict", [False, True], ids=["warns", "strict"])
def test_real_ranks_of_two_versions(tmp_path: Path, other_version: Path, strict: bool) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
            import os, sys
            rank = int(os.environ["RANK"])
            if rank == 1:
                sys.path.insert(0, {str(other_version)!r})
            import torch.distributed
            torch.distributed.init_process_group("gloo")
            import msctx
            try:
                with msctx.context(deterministic="ON", strict={strict}):
                    print(f"rank {{rank}} is on {{msctx.__version__}}\\n", end="")
            except msctx.StrictError as error:
                print(f"rank {{rank}} is refused\\n", end="")
                print(f"{{error}}\\n", end="", file=sys.stderr)
            torch.distributed.barrier()
        """)
    )
    done = subprocess.run(torchrun(2, tmp_path / "train.py"), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"msctx: rank 0: {msctx.__version__} (" in done.stderr
    assert "; rank 1: 0.0.9 (" in done.stderr
    assert (done.stdout.count("is on"), done.stdout.count("is refused")) == ((1, 1) if strict else (2, 0))


def test_a_store_that_is_silent_does_not_keep_tuning_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Silent:
        def compare_set(self, *_: str) -> bytes:
            ended.wait()
            return b""

    monkeypatch.setattr(distributed, "store", Silent)
    monkeypatch.setattr(distributed, "PATIENCE", 0.1)
    assert distributed.agreed("convolutions", "[]") is None
    ended.set()
