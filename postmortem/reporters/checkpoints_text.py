"""The text output about the health of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.checkpoints.health import Health, TensorHealth

_SHOWN = 5  # tensors
_LONGEST = 100  # characters of a tensor's name
_LEAP = 100.0  # an optimizer's moments often change by more than their own norm between two checkpoints


def health_lines(h: Health, root: Path, *, verbose: bool = False) -> Iterator[str]:
    """A headline (path below `root`, step, verdict, size), then the bad tensors and those that changed most.

    verbose: every tensor. Each line is safe for a terminal.
    """
    return map(one_line, [_headline(h, root), *_tensors(h, verbose), *_changes(h), *_troubles(h)])


def one_line(text: str) -> str:
    """`text` in one line, safe for a terminal."""
    return printable(text).replace("\n", " ⏎ ")


def _headline(h: Health, root: Path) -> str:
    verdict = "good" if h.finite and not h.problems else "NON-FINITE" if h.finite is False else "damaged"
    if not h.tensors:
        verdict = "UNREADABLE" if h.problems else "NO WEIGHTS"
    size = f"{len(h.tensors)} tensors, {_size(h.nbytes)}" if h.tensors else ""
    if norm := sum(t.norm**2 for t in _weights(h)) ** 0.5:
        of = "" if h.finite else " (finite values only)" if h.finite is False else " (readable tensors only)"
        size += f", norm {norm:.4g}{of}"
    path = Path(h.path)
    name = path.relative_to(root) if path != root and path.is_relative_to(root) else path
    return f"{name}  step {'?' if h.step is None else h.step}  {verdict}  {size}".rstrip()


def _tensors(h: Health, verbose: bool) -> Iterator[str]:
    """The bad tensors, or all of them."""
    shown = h.tensors if verbose else h.bad
    for t in shown[: None if verbose else _SHOWN]:
        kinds = ", ".join(f"{n} {what}" for n, what in ((t.nan, "NaN"), (t.posinf, "inf"), (t.neginf, "-inf")) if n)
        sizes = f"max {t.max_abs:.4g}, norm {t.norm:.4g}"
        if t.nonfinite and t.nonfinite >= t.numel:
            sizes = "no finite values"
        yield f"    {_short(t.name)} {list(t.shape)} {t.dtype}: {kinds + ', ' if kinds else ''}{sizes}"
    if len(shown) > _SHOWN and not verbose:
        yield f"    and {len(shown) - _SHOWN} more"


def _changes(h: Health) -> Iterator[str]:
    """The weights that changed most, and the optimizer state if it changed by more than _LEAP."""
    weights = _weights(h)
    leapt = [t for t in _most_changed(_state(h))[:1] if t not in weights and (t.change or 0) > _LEAP]
    changed = _most_changed(weights)[:3] + leapt
    if changed and h.finite:
        names = ", ".join(f"{_short(t.name)} {t.change:.2g}" for t in changed)
        yield f"    largest relative changes since the previous checkpoint: {names}"


def _troubles(h: Health) -> Iterator[str]:
    if not h.tensors and not h.problems:
        yield "    no floating-point tensors"
    for p in h.problems:
        yield f"    {Path(p.path).name}: {p.what}"
    if h.unverified:
        yield f"    checksums of {_size(h.unverified)} were not compared; --checksums compares them"


def _weights(h: Health) -> list[TensorHealth]:
    """The weights; the state if there are none (a file of optimizer state alone)."""
    return [t for t in h.tensors if t.part == "weights"] or _state(h)


def _state(h: Health) -> list[TensorHealth]:
    return [t for t in h.tensors if t.part == "state"]


def _most_changed(tensors: list[TensorHealth]) -> list[TensorHealth]:
    return sorted((t for t in tensors if t.change), key=lambda t: -(t.change or 0))


def _size(nbytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes / 2**10:.1f} KiB"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
