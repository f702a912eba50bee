"""The benches of matrix products, of networks made of them, and of trainings by parts, tried with tiny sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Bench = Callable[[str], Any]
MACHINE = {"cpu": "a CPU", "isa": "avx2", "amx_fp16": False, "cores": 2, "torch": "2"}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("group", ["strict", "performance"])
def test_a_product_is_measured_beside_torch_twice(bench: Bench, native_core: None, group: str, tmp_path: Any) -> None:
    products, shapes = bench("products"), bench("shapes")
    of = products.BY_NAME[group]
    options = {"tuning_file": str(tmp_path / "tuning.json")} if of.is_tuned else {}
    for shape in (shapes.Shape(40, 30, 20), shapes.Shape(5, 6, 7, "TN", 3)):
        found = products.measure(of, shape, 0.01, options)
        assert found["ms"].keys() == found["errors"].keys() | {"again"} == {"torch", "ours", "again"}
        assert found["within"]
        assert max(found["errors"].values()) < 1e-6
        if group == "strict":
            assert found["ran"] == ["strict (strict)"]


def test_shapes_are_what_their_letters_say(bench: Bench) -> None:
    shapes = bench("shapes")
    assert len(shapes.OF_EACH_KIND) >= 60
    assert len(set(shapes.OF_EACH_KIND)) == len(shapes.OF_EACH_KIND)
    left, right = shapes.tensors(shapes.Shape(5, 6, 7, "TT", 3), 0)
    assert (left.shape, right.shape) == ((3, 5, 6), (3, 6, 7))
    assert (left.stride(-1), right.stride(-1)) == (5, 6)
    left, right = shapes.tensors(shapes.Shape(5, 6, 7), 0, "denormal")
    assert left.abs().max() < torch.finfo(torch.float32).tiny < right.abs().max()


def test_groups_that_a_processor_does_not_have_are_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    products = bench("products")
    named = {}
    for isa in ("avx2", "amx", "amx_fp16", "amx_fp16_emulated"):
        monkeypatch.setattr(products.contest, "machine", lambda isa=isa: {"isa": isa})
        named[isa] = {group.name for group in products.here()}
    assert named["avx2"] == {"strict", "strict-shapes", "strict-denormals", "normal", "performance"}
    assert named["amx_fp16"] - named["amx"] == {"fp16x3", "fp16x3-kept", "fp16x3-denormals"}
    assert named["amx_fp16"] == named["amx_fp16_emulated"] == {*products.BY_NAME}


def test_a_table_of_products_has_engines_beside_and_names_what_is_slower(bench: Bench) -> None:
    products = bench("products")

    def problem(group: str, shape: int, *ms: float, left: bool = False, **others: float) -> dict[str, Any]:
        """*ms*: of ours, and of torch the first and the second time."""
        of, times = products.BY_NAME[group].shapes[shape].name, zip(("ours", "torch", "again"), ms, strict=True)
        each = {side: {"": one} for side, one in (*times, *others.items())}
        errors = {"ours": 2e-7, "torch": 3e-7, **dict.fromkeys(others, 4e-3)}
        found = {"ms": each, "errors": errors, "within": True, "ran": products.LEFT if left else ["fp16x3 (fp32-grade)"]}
        return dict(products.summary((group, of, 1), [found] * 3))

    problems = [
        problem("fp16x3", 0, 0.5, 1.0, 1.0, **{products.ONE_PART: 0.1}),
        problem("fp16x3", 1, 0.25, 1.0, 1.0),
        problem("normal", 0, 1.25, 1.0, 1.0),
        problem("normal", 1, 1.25, 1.0, 1.5),
        problem("normal", 2, 0.025, 0.02, 0.021, left=True),
        problem("performance", 0, 9.0, 1.0, 1.0, left=True),
    ]
    _, _, first, second, third, _, last, _, slow = products.table([{"machine": MACHINE, "processes": 3, "problems": problems}])
    line = "| `fp16x3`, 1024 to 4096 | 1 | 0 of 2 | **2.83 (2.83 to 2.83)** | 2.00 | 4.00 | 2.00 | 1.00 to 1.00 | 2e-07, 3e-07"
    assert first == f"{line} | 10.00, 4e-03 |"
    assert second.startswith("| `normal`, 70 shapes | 1 | 1 of 3 | - | 0.80 | 0.80 |")
    assert third == "| `performance`, 70 shapes | 1 | 1 of 1 |  |  |  |  |  |  |  |"
    assert last.endswith("that is left to PyTorch takes 5.0 µs longer (A/A: 1.0 µs).")
    assert slow.startswith("Below 0.97: 1 x 384 x 384, NT (normal, 1 thread): 0.80, A/A 1.00, by fp16x3")
    assert ";" not in slow, "the other one is within the control"


def test_an_engine_of_blocks_gives_the_product(bench: Bench, native_core: None) -> None:
    """In float32, which any processor has: what differs with 16 bits is how pairs of rows lie."""
    brgemm = bench("brgemm")
    if not hasattr(brgemm._library(), "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"):
        pytest.skip("this PyTorch does not export brgemm")
    for rows, depth, columns in ((1, 2, 1), (5, 6, 7), (200, 1030, 130)):
        x, w = torch.randn(rows, depth), torch.randn(depth, columns)
        torch.testing.assert_close(brgemm.product(w, torch.float32)(x), x @ w, rtol=1e-4, atol=1e-4)
    w = torch.arange(8.0).view(4, 2).bfloat16()
    (block,) = brgemm._packed(w)
    assert block.shape == (2, 64, 2)
    assert [pair.tolist() for pair in block[:, 1]] == [[1, 3], [5, 7]]


def small(networks: Any) -> dict[str, Callable[[], torch.nn.Module]]:
    return {
        "gpt2": lambda: networks.Words(50, 32, 16, [networks.Block(32, 4, is_causal=True)]),
        "bert": lambda: networks.Words(50, 32, 16, [networks.Block(32, 4, is_pre=False)]),
    }


@pytest.mark.filterwarnings("ignore:.*allow_tf32=True")
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_networks_of_words_are_measured(bench: Bench, native_core: None, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models, networks = bench("models"), bench("networks")
    monkeypatch.setattr(models, "NETWORKS", small(networks))
    monkeypatch.setattr(models, "inputs", lambda name, batch: torch.randint(50, (batch, 12)))
    monkeypatch.setattr(models.contest, "fastest", once)
    monkeypatch.setattr(models.runtimes, "installed", lambda *_: {})
    ran: list[str] = []
    monkeypatch.setattr(models.contest, "Contender", watched(models.contest.Contender, ran))
    for name in ("gpt2", "bert"):
        found = models.measure(name, phase, 2, 0.01, False, None)
        assert found["ms"].keys() == {"torch", *models.CLASSES, "bf16 autocast", "again"}
        assert all(found["errors"][side] < 1e-5 for side in ("torch", *models.CLASSES))
    assert set(ran) == {"matmul"}, "products are asked for"


def once(contenders: Any, seconds: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for one in contenders:
        with one.scope():
            one.run(0)
        found.setdefault(one.side, {})[one.name] = 1.0
    return found


def watched(make: Any, ran: list[str]) -> Any:
    """Contenders that put down which directions choices() shows."""
    from contextlib import contextmanager

    def contender(side: str, name: str, scope: Any, run: Any) -> Any:
        @contextmanager
        def counted() -> Any:
            with scope() as ctx:
                yield ctx
            if hasattr(ctx, "choices"):
                ran.extend(row.direction for row in ctx.choices())

        return make(side, name, counted, run)

    return contender


@pytest.mark.full
def test_networks_have_the_sizes_that_are_published(bench: Bench) -> None:
    networks = bench("networks")
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in networks.NETWORKS[name]().parameters()) for name in ("gpt2", "bert", "vit")}
    head = {"gpt2": 50257 * 768, "bert": 30522 * 768}
    # GPT-2 shares its head with the words; BERT has two kinds of segments, a norm of words and no norm at the end
    assert sizes["gpt2"] - head["gpt2"] == 124_439_808
    assert sizes["bert"] - head["bert"] == 109_482_240 - 768 * 768 - 768 - 2 * 768
    assert sizes["vit"] == 86_567_656


def test_a_training_gives_its_losses_and_what_computed_it(bench: Bench, native_core: None) -> None:
    learning = bench("learning")
    assert [*learning.sides("")] == [learning.FLOAT32, learning.ORDER]
    assert learning.sides("amx_fp16")[learning.GRADE]["matmul_algo"] == "fp16x3"
    found = {side: learning.trained("characters", options, 2) for side, options in learning.sides("").items()}
    plain, other = found[learning.FLOAT32], found[learning.ORDER]
    assert len(plain["losses"]) == 2
    assert plain["losses"] == pytest.approx(other["losses"], rel=1e-5)
    assert (plain["calls"], [*other["calls"]]) == ({}, ["strict"])


def test_a_table_of_trainings_has_both_losses_and_the_share_of_a_class(bench: Bench) -> None:
    learning = bench("learning")
    losses = {learning.FLOAT32: [4.0, 2.0], learning.GRADE: [4.0, 2.5]}
    sides = {
        side: {"losses": each, "held_out": 3.0, "calls": {"fp32-grade": 3, "strict": 1} if side == learning.GRADE else {}}
        for side, each in losses.items()
    }
    of = MACHINE | {"isa": "amx_fp16_emulated"}
    _, _, plain, grade, _, last = learning.table([{"machine": of, "processes": 1, "subjects": {"digits": sides}}])
    assert plain == "| float32 | 2.0000 | 3.0000 |  |  |"
    assert grade == "| fp32-grade | 2.5000 | 3.0000 | 2e-01 | 75 % |"
    assert "the matrix unit (amx_fp16) is software" in last
    assert learning.curve([float(n) for n in range(100)])[0] == (1.0, 0.5)
