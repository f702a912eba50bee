"""Values of options for tests; options that name a file get one of tests/data, where each example of the reference stands."""

from pathlib import Path
from typing import Any

from msctx.options import OPTIONS, UNSET, Option

DATA = Path(__file__).parent / "data"


def example(option: Option) -> Any:
    """The option's example, as it can be used: a file that is there."""
    names_file = option.content is not None and option.content.is_file
    return str(DATA / option.example) if names_file else option.example


def values(option: Option) -> list[Any]:
    """The closed choices of an option, its default and its example."""
    closed = list(option.choices) or ([True, False] if option.adapter.json_schema().get("type") == "boolean" else [])
    return [*closed, example(option), *([option.default] if option.default is not UNSET else [])]


EXAMPLES = {name: example(option) for name, option in OPTIONS.items()}
