"""Values of options for tests; options that name a file get the shipped sample."""

from typing import Any

from msctx.options import OPTIONS, UNSET, Option
from msctx.options.kinds import adapter
from msctx.shipped import CONFIGS

DATA = CONFIGS / "files"


def example(option: Option) -> Any:
    """The option's example, as it can be used: a file that is there."""
    return str(DATA / option.example) if option.names_file else option.example


def values(option: Option) -> list[Any]:
    """The closed choices of an option, its default and its example."""
    closed = list(option.choices) or ([True, False] if adapter(option.type).json_schema().get("type") == "boolean" else [])
    return [*closed, example(option), *([option.default] if option.default is not UNSET else [])]


EXAMPLES = {name: example(option) for name, option in OPTIONS.items()}
