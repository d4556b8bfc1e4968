"""Models of sequences: what their targets are, and which positions their outputs depend on."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.observe.padding import CountedTargets, padding_of
from postmortem.silent.observe.places import place
from postmortem.silent.observe.probe import Part, Probe, change_of, first_mixing, probe_of
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Probed, TargetsMatched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_STEPS = (2, 8, 32)
"""Not before the first updates: what starts at 0 depends on nothing."""
_LONGEST = 4  # positions, at least
_SECONDS = 5.0
_TARGETS = 20
_SHIFTS = range(4)
_AGREES = 0.95
_POSITIONS = ("wpe", "pe")


@watcher
class Sequences(Watcher):
    """TargetsMatched, TargetsPadded, Probed."""

    order = 3

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._called: tuple[torch.nn.Module, Any, Any] | None = None
        self._losses: list[tuple[torch.Tensor, torch.Tensor, int, Place | None]] = []
        self._counted = CountedTargets()
        self._padded: CountedTargets | None = None
        self._spent = 0.0
        for name in ("cross_entropy", "nll_loss"):
            self.wrap(torch.nn.functional, name, self._loss)

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        wanted = self.recorder.sampled and self.recorder.grad and len(running) == 1
        if wanted and any(True for _ in module.parameters()):
            self._called = module, args, _keywords(module)

    def _loss(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.recorder.sampled and self.recorder.grad and len(self._losses) < 4:
            output, target = (*args, kwargs.get("input"), kwargs.get("target"))[:2]
            if isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor) and not target.is_floating_point():
                ignored = kwargs.get("ignore_index", -100)
                self._losses.append((output, target, ignored, place()))
                self._counted.loss(target, ignored, result, place())

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        called, losses = self._called, self._losses
        self._called, self._losses = None, []
        counted, self._counted = self._counted, CountedTargets()
        if called is None or not self.recorder.sampled:
            return
        module, args, kwargs = called
        tokens = next((t for t in _tensors((args, kwargs)) if _are_tokens(t)), None)
        if tokens is None:
            return
        counted.tokens(module, kwargs, tokens)
        self._padded = counted
        shifts = [self._matched(tokens, *loss) for loss in losses]
        if self.recorder.steps in _STEPS and self._spent < _SECONDS:
            began = time.monotonic()
            self._probe(module, args, kwargs, tokens, 1 in shifts)
            self._spent += time.monotonic() - began

    def after_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        counted, self._padded = self._padded, None
        for fact in counted.told(self.recorder.steps) if counted is not None else ():
            self.recorder.add(fact)

    def _matched(self, tokens: torch.Tensor, output: torch.Tensor, target: torch.Tensor, ignored: int, at: Any) -> int:
        """The shift of the targets; -1 for targets that are no tokens of the input, and where positions come before
        samples (as in an RNN that is not `batch_first`), of which the probes know nothing."""
        for time_first in (False, True):
            given = tokens.t() if time_first else tokens
            samples, positions = given.shape
            length, rest = divmod(target.numel(), samples)
            if rest or not 1 < length <= positions or target.device != tokens.device:
                continue
            lines = target.reshape(length, samples).t() if time_first else target.reshape(samples, length)
            shares = _shares(given, lines, ignored)
            best = max(shares, key=lambda s: shares[s], default=0)
            if not shares or shares[best] < _AGREES:
                continue
            other = max((share for shift, share in shares.items() if shift != best), default=0.0)
            shift = best - _offset(output, 0 if time_first else 1)
            self.recorder.add(TargetsMatched(self.recorder.steps, shift, shares[best], other, at))
            return -1 if time_first else shift
        return -1

    # ---- probes

    def _probe(self, module: Any, args: Any, kwargs: Any, tokens: torch.Tensor, next_token: bool) -> None:
        samples, positions = tokens.shape
        probe = probe_of(
            getattr(module, "module", module) if _wraps(module) else module, args, kwargs, samples, positions
        )
        if probe is None:
            return
        base = probe.run(tokens, tokens)
        here = torch.zeros(samples, positions, dtype=torch.bool)
        if next_token:
            self._future(probe, base, tokens, here.clone())
        padding = padding_of(module, tokens)
        self._order(probe, base, tokens, here.clone() if padding is None else here | padding.cpu())
        if padding is not None:
            self._padding(probe, base, tokens, padding)

    def _future(self, probe: Probe, base: list[Part], tokens: torch.Tensor, before: torch.Tensor) -> None:
        middle = tokens.shape[1] // 2
        other = tokens.clone()
        other[:, middle:] = tokens.roll(1, 0)[:, middle:] if len(tokens) > 1 else tokens[:, middle:].flip(1)
        before[:, :middle] = True
        self._told("future", first_mixing(base, probe.run(tokens, other), before))

    def _order(self, probe: Probe, base: list[Part], tokens: torch.Tensor, padding: torch.Tensor) -> None:
        """One token replaced shows what brings positions together; two swapped, whether their order matters to it."""
        first, second = 0, tokens.shape[1] // 2
        behind = ~padding
        behind[:, : second + 1] = False
        behind[(tokens[:, first] == tokens[:, second]).cpu() | padding[:, second]] = False
        replaced, swapped = tokens.clone(), tokens.clone()
        replaced[:, first] = tokens[:, second]
        swapped[:, first], swapped[:, second] = tokens[:, second], tokens[:, first]
        mixing = first_mixing(base, probe.run(tokens, replaced), behind)
        if mixing is not None:
            change = change_of(mixing[0].name, base, probe.run(tokens, swapped), behind)
            elsewhere = {n for n, shape in probe.looked_up.items() if tokens.shape[1] not in shape}
            names = [n for n in _names(probe.module) if n.removesuffix(".weight") not in elsewhere]
            self._told("order", (mixing[0], change), tuple(n for n in names if _of_positions(n)))

    def _padding(self, probe: Probe, base: list[Part], tokens: torch.Tensor, padding: torch.Tensor) -> None:
        """Embeddings are changed, not tokens: masks are often made of these."""
        last = (~padding).sum(1) - 1
        one = torch.zeros_like(padding).scatter_(1, last.clamp(min=0)[:, None], True) & ~padding
        some = padding.any(1, keepdim=True) & (last > 0)[:, None]
        for question, where in (("padding", padding), ("tokens", one)):
            probe.change = lambda output, where=where: output + 3 * where[..., None].to(output.dtype) * _noise(output)
            try:
                watched = (~padding & ~one & some).cpu()
                self._told(question, first_mixing(base, probe.run(tokens, tokens), watched))
            finally:
                probe.change = None

    def _told(self, question: str, found: tuple[Part, float] | None, positions: tuple[str, ...] = ()) -> None:
        part, change = found if found is not None else (Part("", "", None, None), 0.0)
        label = f"{part.name} ({part.type})" if part.name else part.type
        self.recorder.add(Probed(self.recorder.steps, question, change, label, part.inside, part.at, positions))


def _keywords(module: torch.nn.Module) -> dict[str, Any]:
    """Global hooks are not told the keywords of a call: they are in a frame of the call itself."""
    frame = sys._getframe(2)
    for _ in range(12):
        if frame.f_locals.get("self") is module and isinstance(frame.f_locals.get("kwargs"), dict):
            return dict(frame.f_locals["kwargs"])
        if frame.f_back is None:
            break
        frame = frame.f_back
    return {}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _are_tokens(tensor: torch.Tensor) -> bool:
    whole = tensor.dtype in (torch.int64, torch.int32) and tensor.dim() == 2
    return whole and tensor.shape[0] > 1 and tensor.shape[1] >= _LONGEST and bool((tensor != tensor[0, 0]).any())


def _shares(tokens: torch.Tensor, lines: torch.Tensor, ignored: int) -> dict[int, float]:
    """Shift -> the share of the targets that are the tokens so many positions later."""
    shares = {}
    for shift in _SHIFTS:
        mine = lines[:, : tokens.shape[1] - shift]
        given = tokens[:, shift : shift + mine.shape[1]]
        valid = mine != ignored
        if int(valid.sum()) >= _TARGETS:
            shares[shift] = float((mine == given)[valid].float().mean())
    return shares


def _offset(output: torch.Tensor, dim: int) -> int:
    """From which position on the outputs are compared: `logits[:, 1:]` leaves one out. dim: of the positions."""
    node: Any = output.grad_fn
    for _ in range(6):
        if node is None:
            return 0
        if node.name() == "SliceBackward0" and node._saved_dim == dim:
            return int(node._saved_start) if node._saved_start < 1 << 40 else 0
        node = next((child for child, _ in node.next_functions if child is not None), None)
    return 0


def _wraps(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))


def _noise(output: torch.Tensor) -> torch.Tensor:
    """Fixed: no random number is drawn."""
    return torch.sin(torch.arange(output.shape[-1], device=output.device, dtype=output.dtype) * 1.7 + 0.4)


def _names(module: torch.nn.Module) -> list[str]:
    return [n for n, _ in (*module.named_modules(), *module.named_parameters(), *module.named_buffers())]


def _of_positions(name: str) -> bool:
    last = [part for part in name.lower().split(".") if part not in ("weight", "bias")]
    words = re.split(r"[_\d]+", last[-1]) if last else []
    other = any(part in words or "wise" in last[-1] for part in ("ff", "ffn", "weight", "neg"))
    return not other and any(word.startswith("pos") or word in _POSITIONS for word in words)
