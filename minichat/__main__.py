"""`python -m minichat`, and the console script."""

import sys


def main() -> int:
    """Run the command line. Its imports take long enough for Ctrl+C to come meanwhile."""
    try:
        from minichat import cli
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11, while it creates a class
            raise
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
