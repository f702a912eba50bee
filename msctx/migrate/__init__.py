"""``msctx migrate``: reads the context calls of a MindSpore script, running nothing, and writes them as msctx has them."""

from msctx.migrate.calls import Call, Entry
from msctx.migrate.migration import Migration, as_dict, as_yaml, planned, read

__all__ = ["Call", "Entry", "Migration", "as_dict", "as_yaml", "planned", "read"]
