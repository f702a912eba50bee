"""``msctx``, and ``python -m msctx``."""

import sys


def main() -> None:
    """As :func:`msctx.cli.main`; Ctrl-C while that is loaded ends without a traceback."""
    try:
        from msctx.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
