"""Counts the steps of a pattern instead of its time, on texts made to hurt it.

`re` does not report how often it backtracks, so `steps` runs the parsed pattern through a small backtracking matcher of
the same rules and counts. Bounded repeats are shortened first (`_shortened`): what they cost does not grow with the
text. A pattern is in order if twice the text costs about twice the steps, wherever its repeats are pumped up.
"""

from __future__ import annotations

import re
import sys
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 8
"""Repeats with a bound above this are shortened to it."""
POOL = "a1 Z_.,:=-+/|()[]{}'\"<>#%\t\n\\é\x00`@*~^$&;?!0e9"
STOP = "\x01"
MOST = 60_000
"""Steps after which a count is given up: enough for any pattern in order."""
ONE = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)
"""What takes one character."""
REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)
Nodes = list[tuple[Any, Any]]


class TooManySteps(Exception):
    pass


def nodes_of(pattern: re.Pattern[Any]) -> Nodes:
    """The parsed pattern, its long bounded repeats shortened."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    flags = pattern.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE)
    return _shortened(list(parser.parse(source, flags)))


def _shortened(nodes: Nodes) -> Nodes:
    out: Nodes = []
    for op, av in nodes:
        if op in REPEATS:
            low, high, body = av
            bounded = high is not c.MAXREPEAT and high > LIMIT
            out.append((op, (min(low, LIMIT), LIMIT if bounded else high, _shortened(list(body)))))
        elif op is c.SUBPATTERN:
            out.append((op, (*av[:3], _shortened(list(av[3])))))
        elif op is c.BRANCH:
            out.append((op, (None, [_shortened(list(b)) for b in av[1]])))
        elif op is c.ATOMIC_GROUP:
            out.append((op, _shortened(list(av))))
        elif op in (c.ASSERT, c.ASSERT_NOT):
            out.append((op, (av[0], _shortened(list(av[1])))))
        else:
            out.append((op, av))
    return out


def _category(name: Any, char: str) -> bool:
    kind = str(name).removeprefix("CATEGORY_").removeprefix("UNI_").removeprefix("NOT_")
    yes = {"DIGIT": char.isdigit(), "SPACE": char.isspace(), "WORD": char.isalnum() or char == "_"}[kind]
    return yes != ("NOT_" in str(name))


def fits(op: Any, av: Any, char: str, fold: bool) -> bool:
    """Whether a node of one character takes this one."""
    if op is c.ANY:
        return char != "\n"
    variants = {char.lower(), char.upper(), char} if fold else {char}
    if op in (c.LITERAL, c.NOT_LITERAL):
        return any(ord(v) == av for v in variants if len(v) == 1) == (op is c.LITERAL)
    negated = av[0][0] is c.NEGATE
    hit = any(
        (kind is c.LITERAL and any(ord(v) == what for v in variants if len(v) == 1))
        or (kind is c.RANGE and any(what[0] <= ord(v) <= what[1] for v in variants if len(v) == 1))
        or (kind is c.CATEGORY and _category(what, char))
        for kind, what in av
    )
    return hit != negated


class _Run:
    """One text. `match` is written with continuations, as a backtracking matcher is easiest to read."""

    def __init__(self, text: str, flags: int) -> None:
        self.text, self.steps = text, 0
        self.fold, self.lines = bool(flags & re.IGNORECASE), bool(flags & re.MULTILINE)
        self.known: dict[tuple[Any, int, str], bool] = {}

    def fits(self, op: Any, av: Any, char: str) -> bool:
        """As `fits`, looked at once for a node and a character."""
        key = (op, av if isinstance(av, int) else id(av), char)
        if key not in self.known:
            self.known[key] = fits(op, av, char, self.fold)
        return self.known[key]

    def match(self, nodes: Nodes, i: int, at: int, then: Callable[[int], bool]) -> bool:
        if i == len(nodes):
            return then(at)
        self.steps += 1
        if self.steps > MOST:
            raise TooManySteps
        op, av = nodes[i]
        if op in ONE:
            return at < len(self.text) and self.fits(op, av, self.text[at]) and self.match(nodes, i + 1, at + 1, then)

        def rest(end: int) -> bool:
            return self.match(nodes, i + 1, end, then)

        if op in REPEATS:
            return self._repeat(op, av, at, rest)
        if op is c.SUBPATTERN:
            return self.match(av[3], 0, at, rest)
        if op is c.BRANCH:
            return any(self.match(branch, 0, at, rest) for branch in av[1])
        if op is c.AT:
            return self._at(av, at) and rest(at)
        if op is c.ATOMIC_GROUP:
            end = self._once(av, at)
            return end is not None and rest(end)
        if op in (c.ASSERT, c.ASSERT_NOT):
            return (self._look(av, at) == (op is c.ASSERT)) and rest(at)
        if op is c.GROUPREF:
            return rest(at)  # what it repeats is bounded by what it repeats
        raise AssertionError(op)

    def _once(self, nodes: Nodes, at: int) -> int | None:
        ends: list[int] = []
        self.match(nodes, 0, at, lambda end: ends.append(end) or True)  # type: ignore[func-returns-value]
        return ends[0] if ends else None

    def _look(self, av: Any, at: int) -> bool:
        direction, nodes = av
        if direction > 0:
            return self._once(nodes, at) is not None
        return any(self._once(nodes, start) == at for start in range(max(0, at - 3), at + 1))

    def _at(self, where: Any, at: int) -> bool:
        text = self.text
        if where in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return at == 0 or (self.lines and text[at - 1] == "\n")
        if where in (c.AT_END, c.AT_END_STRING):
            return at == len(text) or (self.lines and text[at] == "\n")
        word = [0 <= k < len(text) and (text[k].isalnum() or text[k] == "_") for k in (at - 1, at)]
        return (word[0] != word[1]) == (where is c.AT_BOUNDARY)

    def _repeat(self, op: Any, av: Any, at: int, rest: Callable[[int], bool]) -> bool:
        low, high, body = av
        if op is c.POSSESSIVE_REPEAT or (len(body) == 1 and body[0][0] in ONE):
            ends = [at]
            while len(ends) <= high and (end := self._once(body, ends[-1])) is not None and end > ends[-1]:
                ends.append(end)
            if len(ends) <= low:
                return False
            if op is c.POSSESSIVE_REPEAT:
                return rest(ends[-1])
            order = ends[low:] if op is c.MIN_REPEAT else ends[low:][::-1]
            return any(rest(end) for end in order)

        def more(count: int, here: int) -> bool:
            def again(end: int) -> bool:
                return end > here and more(count + 1, end)

            if count < low:
                return self.match(body, 0, here, lambda end: more(count + 1, end))
            if op is c.MIN_REPEAT:
                return rest(here) or (count < high and self.match(body, 0, here, again))
            return (count < high and self.match(body, 0, here, again)) or rest(here)

        return more(0, at)


def steps(nodes: Nodes, text: str, *, flags: int, anywhere: bool) -> int:
    """Steps to look for the pattern in a text, at every place of it (`anywhere`) or at its beginning."""
    sys.setrecursionlimit(20_000)
    run = _Run(text, flags)
    try:
        any(run.match(nodes, 0, start, lambda _: True) for start in range(len(text) + 1 if anywhere else 1))
    except (TooManySteps, RecursionError):
        return MOST
    return run.steps


def shortest(nodes: Nodes, fold: bool) -> str:
    """A short text that the nodes take, lookarounds aside."""
    out = ""
    for op, av in nodes:
        if op is c.LITERAL:
            out += chr(av)
        elif op in (c.IN, c.NOT_LITERAL, c.ANY):
            out += next((char for char in POOL if fits(op, av, char, fold)), "a")
        elif op in REPEATS:
            out += shortest(av[2], fold) * min(av[0], LIMIT)
        elif op is c.SUBPATTERN:
            out += shortest(av[3], fold)
        elif op is c.BRANCH:
            out += shortest(av[1][0], fold)
        elif op is c.ATOMIC_GROUP:
            out += shortest(av, fold)
    return out


def pumped(nodes: Nodes, n: int, fold: bool, before: str = "") -> Iterator[str]:
    """Texts in which one repeat of the pattern finds n times what it takes, and then nothing fits."""
    for i, (op, av) in enumerate(nodes):
        here = before + shortest(nodes[:i], fold)
        if op in REPEATS:
            body = av[2]
            yield here + shortest(body, fold) * n + STOP
            if len(body) == 1 and body[0][0] in (c.IN, c.ANY, c.NOT_LITERAL):
                taken = [char for char in POOL if fits(*body[0], char, fold)]
                following = shortest(nodes[i + 1 :], fold)
                for char in {*taken[:3], *(char for char in following[:6] if char in taken)}:
                    yield here + char * n + STOP
                    if following:
                        yield here + (char + following[:12]) * (n // (1 + len(following[:12])) + 1) + STOP
            yield from pumped(body, n, fold, here)
        elif op is c.SUBPATTERN:
            yield from pumped(av[3], n, fold, here)
        elif op is c.BRANCH:
            for branch in av[1]:
                yield from pumped(branch, n, fold, here)
        elif op is c.ATOMIC_GROUP:
            yield from pumped(av, n, fold, here)


def growth(pattern: re.Pattern[Any], *, anywhere: bool, n: int = 48) -> tuple[float, str]:
    """The worst ratio of steps on twice a text to steps on it, and the text; about 2 if linear, 4 if quadratic."""
    nodes, fold = nodes_of(pattern), bool(pattern.flags & re.IGNORECASE)
    whole = shortest(nodes, fold)
    texts = [*zip(pumped(nodes, n, fold), pumped(nodes, 2 * n, fold), strict=True)]
    texts.append((whole[:-1] * max(1, n // max(1, len(whole))), whole[:-1] * max(2, 2 * n // max(1, len(whole)))))
    worst = (0.0, "")
    for short, long in dict(texts).items():
        few, many = (steps(nodes, text, flags=pattern.flags, anywhere=anywhere) for text in (short, long))
        if many > 40 * len(long):  # some steps for each character are nothing to worry about
            worst = max(worst, (many / max(few, 1) if many < MOST else float("inf"), long))
    return worst
