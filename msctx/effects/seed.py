"""seed, seed_scope, strict: options of our own about the context itself."""

from msctx.effects.base import Outcome, Want, effect, honoured


@effect("seed")
def seed(want: Want) -> Outcome:
    saved = {"rng.saved": True} if want.other("seed_scope") else {}
    return honoured(saved | {"rng.seed": want.value})


@effect("seed_scope")
def seed_scope(want: Want) -> Outcome:
    return honoured({"rng.saved": True} if want.value else {})


@effect("strict")
def strict(want: Want) -> Outcome:
    return honoured()
