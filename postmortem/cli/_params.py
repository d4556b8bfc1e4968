"""What several commands share: the path they take, the one run they load, JSON on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem.core.errors import NotFoundError
from postmortem.core.model import json_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.core.timeline import Run


class _Given(click.Path):
    """A path, but not the empty word that an unset shell variable leaves: as a path that would be this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty path (an unset variable?)", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Given(path_type=Path)


def loaded(path: Path, roles: Mapping[str, str] | None = None) -> Run:
    """The one run at `path`; NotFoundError says why there is nothing to read in it."""
    from postmortem import api  # not at the top: `explain` and `rules` start without it

    run = api.load(path, roles=roles)
    if not run.sources:
        raise NotFoundError("; ".join(f"{p.path}: {p.what}" for p in run.problems[:5]) or f"{path}: no training log found")
    return run


def echo_json(document: Any) -> None:
    """Strict JSON, non-finite numbers as strings."""
    click.echo(json.dumps(json_value(document), indent=2, allow_nan=False))
