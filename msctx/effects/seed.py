"""seed, seed_scope, strict: options of our own about the context itself."""

from msctx.effects.base import Outcome, Want, effect, honoured


@effect("seed")
def seed(want: Want) -> Outcome:
    if want.other("seed_scope"):
        return honoured({"rng.saved": True, "rng.seed": want.value})
    return honoured({"rng.seed": want.value}, "the generators go on after the block; seed_scope=True puts them back")


@effect("seed_scope")
def seed_scope(want: Want) -> Outcome:
    return honoured({"rng.saved": True} if want.value else {})


@effect("strict")
def strict(want: Want) -> Outcome:
    return honoured()
