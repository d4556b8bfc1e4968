"""``python -m postmortem`` is the command ``postmortem``."""

import sys


def main() -> None:
    """The command; Ctrl-C while it is still being imported ends it as later on."""
    try:
        from postmortem.cli.main import main as command
    except KeyboardInterrupt:
        print("postmortem: interrupted", file=sys.stderr)
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
