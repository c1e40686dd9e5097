"""`python -m minichat`, and the console script."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Ctrl+C ends it without a traceback, also during its imports."""
    try:
        from minichat import cli

        return cli.main(argv)
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11, while it creates a class
            raise
        return 130


if __name__ == "__main__":
    sys.exit(main())
