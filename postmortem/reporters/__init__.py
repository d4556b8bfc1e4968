"""Reporters: one file per output format, each rendering one `Report` as text.

A reporter is a function ``render(report, options) -> str`` registered by ``@reporter("name")``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """How to render: columns of the terminal, whether it shows colour, whether to show everything.

    `overlay`: a page also draws the curves of all runs in one set of charts.
    """

    width: int = 100
    color: bool = False
    verbose: bool = False
    overlay: bool = False


class Render(Protocol):
    """A format's rendering; `name` is what ``--format`` takes. The docstring is its line of help."""

    name: str

    def __call__(self, report: Report, options: RenderOptions, /) -> str:
        """The report as text that ends with a line end."""


REPORTERS: Registry[Render] = Registry("postmortem.reporters", key=lambda r: r.name, noun="format")


def reporter(name: str) -> Callable[[Callable[[Report, RenderOptions], str]], Callable[[Report, RenderOptions], str]]:
    """Registers a rendering under the name that ``--format`` takes."""

    def register(render: Callable[[Report, RenderOptions], str]) -> Callable[[Report, RenderOptions], str]:
        render.name = name  # type: ignore[attr-defined]
        REPORTERS.register(render)
        return render

    return register
