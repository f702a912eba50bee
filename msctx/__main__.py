"""``python -m msctx`` is ``msctx``."""

from msctx.cli import main

main()
