from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._updates import SCALE_FREE, updates
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, on_master_copies
from postmortem.silent.weight_facts import Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Stack
    from postmortem.silent.look import Look

_LOW = {"bfloat16", "float16"}
_PLAIN = SCALE_FREE | {"SGD", "ASGD"}
"""Optimizers of torch, which round each update to the nearest: others may keep what is lost, or round at random."""
_LOST = 0.5
_STEPS = 3


@fault
class Bf16UpdatesLost(BaseFault):
    """Parameters are kept in bf16 or fp16, so small updates are rounded away: training stops early, with no sign of it.

    How it is found: at the full learning rate, the optimizer's step leaves more than half of the elements that have a
    non-zero gradient unchanged.

    Not blamed: fp32 parameters with autocast; optimizers with fp32 master copies; updates that are large enough to
    survive rounding; optimizers from other packages, which may use stochastic rounding or keep the remainder.

    What to do: keep the parameters in fp32 and use `torch.autocast`; otherwise use fp32 master copies or stochastic
    rounding.

    How to confirm: compute `(p == before).float().mean()` around `step()`, and compare with a run in fp32.
    """

    code = "TRN034"
    name = "bf16-updates-lost"
    family = "precision"
    because_of = ("learning-rate-zero",)
    checks = "updates are not rounded away"
    trial = Trial("optimizer steps on an fp32 master copy of the parameters", on_master_copies)

    def seen(self, look: Look) -> str:
        return _seen.some(
            [p for p in look.parameters.values() if p.dtype in ("bfloat16", "float16")],
            "parameter in half precision",
            "parameters in half precision",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        for optimizer in look.stepped:
            low = [p for p in look.held_by(optimizer) if look.parameters[p].dtype in _LOW]
            if not low or look.optimizers[optimizer].type not in _PLAIN:
                continue
            shares = [
                median(u.kept[str(p)] for p in low if str(p) in u.kept)
                for u in updates(look, optimizer, 0.3)
                if any(str(p) in u.kept for p in low)
            ]
            if len(shares) < _STEPS:
                raise NotChecked(f"fewer than {_STEPS} updates of parameters in low precision were measured")
            if median(shares) <= _LOST:
                continue
            dtype = look.parameters[low[0]].dtype
            yield self.blame(
                _where(look, optimizer, low),
                f"a step of {look.optimizers[optimizer].type} leaves {median(shares):.0%} (median) of the elements "
                f"with a gradient in {count(len(low), f'{dtype} parameter')} unchanged",
                confirm="compare p before and after step(), and a run with fp32 parameters under torch.autocast",
                unchanged=median(shares),
                parameters=len(low),
                dtype=dtype,
            )


def _where(look: Look, optimizer: int, low: list[int]) -> Stack:
    """Where the type was set."""
    written = next((w.stack for w in look.of(Written) if w.parameter in low and w.by in _LOW), ())
    made = next((look.parameters[p].made for p in low if look.parameters[p].made), ())
    return written or made or look.optimizers[optimizer].stack
