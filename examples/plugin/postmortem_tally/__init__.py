"""An example of a postmortem plugin. Each module registers one thing; ``pyproject.toml`` names them as entry points."""
