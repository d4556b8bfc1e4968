"""Parameters that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class _Given(click.Path):
    """A path, but not the empty word that an unset shell variable leaves: as a path that would be this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty path (an unset variable?)", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Given(path_type=Path)
