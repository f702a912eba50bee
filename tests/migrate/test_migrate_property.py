"""`msctx migrate`: any options mean the same as in Python, and any text is read or rejected with a message."""

import ast
import random
import warnings
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from migrations import check_outputs, meaning, problem_of

from msctx import migrate
from msctx.errors import OptionError
from msctx.migrate.migration import canonical
from msctx.options import OPTIONS, UNSET, Option, find, make_layer
from msctx.options.kinds import Choice, Int, Kind, MemoryKind, Share, TextKind

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
BY_KIND: dict[type[Kind], st.SearchStrategy[Any]] = {
    Int: st.integers(-2, 5000),
    MemoryKind: st.sampled_from(["1GB", "4GB", "2.5GiB", 2**31, "nothing"]),
    TextKind: st.one_of(TEXT, st.sampled_from(["on", "No", "null", "1e3", "0x10", "2001-01-01", "~", "- a", "a: b", "#"])),
}


def values(option: Option) -> st.SearchStrategy[Any]:
    examples = st.just(option.example) if option.example is not UNSET else st.nothing()
    if isinstance(option.kind, Choice):
        return st.one_of(examples, st.sampled_from(option.kind.form.get("enum", [True, False])))
    if option.kind is Share:
        return st.one_of(examples, st.floats(-1, 2))
    return st.one_of(examples, *(drawn for kind, drawn in BY_KIND.items() if isinstance(option.kind, kind)))


# A relative path of a file that msctx writes is meant from the folder it stands in: the same text is not the same value.
SPELLINGS = [s for o in OPTIONS.values() if not o.content and not o.replaced_by and not o.is_output for s in o.spellings]
SPELLINGS = [s for s in SPELLINGS if not s.startswith(("device_context", "runtime", "set_"))]
CHOSEN = st.lists(st.sampled_from(SPELLINGS), max_size=6, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values(find(name)) for name in names})
)


def rendered(options: dict[str, Any], seed: int) -> str:
    """A script that sets options: in several calls, by name, in groups, and from dictionaries."""
    choose = random.Random(seed)
    lines = ["import mindspore as ms"]
    for i, (spelling, value) in enumerate(options.items()):
        *groups, last = spelling.split(".")
        text = repr(value)
        if choose.random() < 0.3:
            lines.append(f"VALUE_{i} = {text}")
            text = f"VALUE_{i}"
        if not groups:
            lines.append(f"ms.set_context({last}={text})")
            continue
        nested = f"{{{last!r}: {text}}}"
        for group in reversed(groups[1:]):
            nested = f"{{{group!r}: {nested}}}"
        if choose.random() < 0.3 and not isinstance(value, dict):
            lines.append(f"GROUP_{i} = dict({groups[0]}={nested})")
            lines.append(f"ms.set_context(**GROUP_{i})")
        else:
            lines.append(f"ms.set_context({groups[0]}={nested})")
    return "\n".join(lines)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(options=CHOSEN, seed=st.integers(0, 100))
def test_any_options_mean_the_same_as_in_python(tmp_path, options, seed):
    try:
        expected = meaning(make_layer(options, "here"))
    except OptionError:
        expected = None
    script = tmp_path / "train.py"
    script.write_text(rendered(options, seed), encoding="utf-8")
    migration = migrate.read(str(script))
    check_outputs(migration, tmp_path)
    if expected is None:
        assume(len({canonical(name) for name in options}) == len(options))
        assert migration.problems
    elif options:
        assert migration.problems == ()
        assert meaning(migration.layer) == expected


WORDS = ("set_context", "import mindspore as ms\n", "ms.set_context(", "device_id", "lambda ", "if ", "f'{", "\\")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=st.lists(st.sampled_from([*WORDS, *"ms.=()[]{},:'\"#*+1a\n "]), max_size=60).map("".join))
def test_any_text_is_read_or_refused_with_a_message(tmp_path, source):
    script = tmp_path / "train.py"
    script.write_bytes(source.encode())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError):
        assert "train.py" in problem_of(str(script))
    else:
        check_outputs(migrate.read(str(script)), tmp_path)
