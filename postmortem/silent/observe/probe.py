"""Runs a copy of a module again, and records the inputs and outputs of its submodules, position by position."""

from __future__ import annotations

import contextlib
import copy
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.observe.places import code_of, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.silent.facts import Place

_ROWS = 8
"""Samples whose values are kept."""
_ELEMENTS = 1 << 22
"""Of one output; larger ones are not kept."""
_LARGEST = 20_000_000
"""Parameters of a module that is copied."""


@dataclass
class Part:
    """A call of a module. before, after: what it got and gave, as samples x positions x features, or None."""

    name: str
    type: str
    inside: Place | None
    at: Place | None
    before: torch.Tensor | None = None
    after: torch.Tensor | None = None


@dataclass
class Probe:
    """A copy of a module, in eval mode, and the arguments it was called with. samples, positions: of its tokens."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    samples: int
    positions: int
    change: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Of the output of the embeddings of tokens."""
    looked_up: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Embedding -> the shape of the indices that it was given."""
    _parts: list[Part] = field(default_factory=list)

    def run(self, tokens: torch.Tensor, instead: torch.Tensor) -> list[Part]:
        """The calls of its parts, in the order in which they end, with other tokens in the place of `tokens`."""
        self._parts = []
        args, kwargs = _replaced((self.args, self.kwargs), tokens, instead)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with _kept_state(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
                self.module(*args, **kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        return self._parts

    def observe(self) -> None:
        """Hooks on all parts of the copy."""
        for name, part in self.module.named_modules():
            record = Part(name, type(part).__name__, code_of(type(part).forward), None)
            part.register_forward_hook(self._hook(record), with_kwargs=True)

    def _hook(self, record: Part) -> Callable[..., Any]:
        def called(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.change is not None and isinstance(module, torch.nn.Embedding):
                output = self.change(output) if output.shape[:2] == (self.samples, self.positions) else output
            given = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
            if isinstance(module, torch.nn.Embedding) and given is not None:
                self.looked_up[record.name] = tuple(given.shape)
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            kept = Part(record.name, record.type, record.inside, place())
            kept.before, kept.after = self._by_position(given), self._by_position(first)
            if kept.after is not None:
                self._parts.append(kept)
            return output

        return called

    def _by_position(self, value: Any) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.numel() > _ELEMENTS:
            return None
        if value.shape[:2] == (self.samples, self.positions):
            kept = value
        elif value.shape[:2] == (self.positions, self.samples):
            kept = value.transpose(0, 1)
        else:
            return None
        return kept[:_ROWS].detach().flatten(2).double() if kept.dim() > 2 else kept[:_ROWS, :, None].double()


def probe_of(module: torch.nn.Module, args: Any, kwargs: Any, samples: int, positions: int) -> Probe | None:
    """None for modules that are too large, or that cannot be copied."""
    if sum(p.numel() for p in module.parameters()) > _LARGEST:
        return None
    made = Probe(copy.deepcopy(module).eval(), args, kwargs, samples, positions)
    for part in made.module.modules():
        part._forward_hooks.clear()  # the program's own, which may collect outputs
    made.observe()
    return made


def first_mixing(base: list[Part], other: list[Part], watched: torch.Tensor) -> tuple[Part, float] | None:
    """The first part whose output differs at the positions `watched` (samples x positions) although its input does not,
    and by how much."""
    for old, new in zip(base, other, strict=False):
        if old.name == new.name and _change(old.before, new.before, watched) < 1e-6:
            change = _change(old.after, new.after, watched)
            if change > 1e-6:
                return new, change
    return None


def change_of(name: str, base: list[Part], other: list[Part], watched: torch.Tensor) -> float:
    """How far the output of a part differs at the positions `watched`."""
    pairs = [(a, b) for a, b in zip(base, other, strict=False) if a.name == b.name == name]
    return max((_change(a.after, b.after, watched) for a, b in pairs), default=0.0)


def _change(old: torch.Tensor | None, new: torch.Tensor | None, watched: torch.Tensor) -> float:
    if old is None or new is None or old.shape != new.shape:
        return 0.0
    here = watched[: old.shape[0]].to(old.device)
    difference = torch.nan_to_num((new - old).abs().amax(-1))[here]
    scale = torch.nan_to_num(old.abs().amax(-1))[here]
    if not difference.numel() or not float(scale.max()):
        return 0.0
    return float(difference.max() / scale.max())


@contextlib.contextmanager
def _kept_state() -> Iterator[None]:
    """Random numbers are drawn as if nothing had run."""
    with torch.random.fork_rng():
        yield


def _replaced(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {k: _replaced(v, old, new) for k, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_replaced(v, old, new) for v in value)
    return value
