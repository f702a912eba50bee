"""seed, seed_by_rank, seed_scope, strict: options of our own about the context itself."""

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, effect, honoured

GO_ON = "the generators go on after the block; seed_scope=True puts them back"
ALONE = "there is no process group and no launcher that numbers processes: this one counts as rank 0"


@effect("seed")
def seed(want: Want) -> Outcome:
    value = {"seed": want.value, "by_rank": True} if want.other("seed_by_rank") else want.value
    if want.other("seed_scope"):
        return honoured({"rng.saved": True, "rng.seed": value})
    return honoured({"rng.seed": value}, GO_ON)


@effect("seed_by_rank")
def seed_by_rank(want: Want) -> Outcome:
    """The rank is looked up when the generators are seeded: the plan is the same on all ranks, and in contexts inside."""
    if not want.value:
        return NOTHING_ASKED
    return honoured(reason=ALONE if want.facts.rank is None else f"this is rank {want.facts.rank}")


@effect("seed_scope")
def seed_scope(want: Want) -> Outcome:
    return honoured({"rng.saved": True} if want.value else {})


@effect("strict")
def strict(want: Want) -> Outcome:
    return honoured()
