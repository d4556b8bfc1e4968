"""``python -m postmortem`` is the command ``postmortem``."""

from postmortem.cli.main import main

if __name__ == "__main__":
    main()
