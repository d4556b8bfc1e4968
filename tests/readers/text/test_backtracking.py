"""No pattern that looks at logs goes back without bound: what they cost grows with the text, not with its square."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import TYPE_CHECKING, Any

import pytest

import postmortem.checkpoints
import postmortem.readers
import postmortem.runs
from postmortem.core.patterns import Later
from postmortem.signatures import CATALOGUE
from tests.readers.text.backtracking import growth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

IN_ORDER = 3.0
"""Steps on twice the text per steps on the text: 2 is in order, 4 a square, 8 a cube."""


def patterns_of(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """(name, pattern, whether it is looked for at every place) of the module and its classes."""
    source = inspect.getsource(module)
    owners = [module, *(v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__)]
    for owner in owners:
        for name, value in vars(owner).items():
            found = [value] if isinstance(value, re.Pattern) else [value.compiled] if isinstance(value, Later) else []
            if isinstance(value, dict):
                found = [p for v in value.values() if isinstance(v, tuple) for p in v if isinstance(p, re.Pattern)]
            for pattern in found:
                anywhere = re.search(rf"\b{name}\.(?:search|finditer|findall|sub|split)\(", source) is not None
                yield f"{module.__name__.rpartition('.')[2]}.{name}", pattern, anywhere


def every_pattern() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    for signature in CATALOGUE.values():
        for pattern in (*signature.patterns, *signature.details, *filter(None, [signature.unless])):
            yield signature.id, re.compile(pattern.pattern, pattern.flags), True
    for package in (postmortem.readers, postmortem.checkpoints, postmortem.runs):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith((".protobuf", ".file_names")):  # a text of our own; at most 255 characters
                yield from patterns_of(importlib.import_module(info.name))


PATTERNS = list(every_pattern())


@pytest.mark.parametrize(
    ("name", "pattern", "anywhere"), PATTERNS, ids=[f"{i}-{name}" for i, (name, _, _) in enumerate(PATTERNS)]
)
def test_twice_the_text_costs_twice_the_steps(name: str, pattern: re.Pattern[Any], anywhere: bool) -> None:
    """Wherever a repeat of the pattern is pumped up, the steps of a backtracking matcher grow like the text."""
    ratio, text = growth(pattern, anywhere=anywhere)
    assert ratio < IN_ORDER, f"{name}: {pattern.pattern!r} on {text[:80]!r}"


@pytest.mark.parametrize(
    ("pattern", "anywhere", "in_order"),
    [
        (r"(a+)+b", False, False),
        (r"a*a*b", False, False),
        (r"(?:\w+\s?)*$", False, False),
        (r"\w+Error", True, False),
        (r"\w+Error", False, True),
        (r"x\s*:\s*y", True, True),
        (r"(?:a++)+b", False, True),
        (r".{0,200}x.{0,300}y", True, True),
        (r"foo\d+bar", True, True),
    ],
)
def test_the_count_tells_bad_patterns_from_good_ones(pattern: str, anywhere: bool, in_order: bool) -> None:
    """Nested and neighbouring repeats of the same characters are found, possessive and bounded ones are not."""
    assert (growth(re.compile(pattern), anywhere=anywhere)[0] < IN_ORDER) == in_order
