"""The repairs that are tried on the whole step, from the state before it, and what they did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes import AtLine, singular, suggested_line
from postmortem.replay.model import Culprit, Fix
from postmortem.replay.rerun.reruns import TRIES
from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.step.runner import Overrides

if TYPE_CHECKING:
    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.rerun.reruns import Reruns, Stage
    from postmortem.replay.rerun.samples import Samples
    from postmortem.replay.step.precision import Precision

LARGEST_INPUT = 1e4
_HALF = (torch.float16, torch.bfloat16)


def with_repairs(found: Culprit, c: Candidate | None, session: Reruns, samples: Samples, *, stage: Stage, fixes: bool, how: list[str]) -> Culprit:
    """Tries the repairs, each on the whole step from the state before it. `stage`: where the step first went wrong."""
    precise, remark = session.in_precision("fp64")
    found = replace(found, precision_only=None if precise is None else not precise)
    if precise is None:
        how.append(f"not run in double precision: {session.failure}")
    if precise and found.cause == "dtype-overflow" and session.fails(Overrides(dtype="fp64", casts_follow=True)) is False:
        how.append("in double precision it happens as well, as the code casts to half precision; without these casts it does not")
    if not fixes:
        return replace(found, how=tuple(how))
    tried: list[Fix] = []

    def attempt(name: str, overrides: Overrides, what: str) -> None:
        fails = session.fails(overrides)
        tried.append(Fix(name=name, cured=fails is False, how=what if fails is not None else f"{what}; could not be run: {session.failure}"))

    def in_precision(name: Precision, what: str) -> None:
        fails, remark = session.in_precision(name)
        tried.append(Fix(name=name, cured=fails is False, how=what + remark))

    attempt("clip_grad", Overrides(clip=1.0), "gradient norm at most 1")
    attempt("lower_lr", Overrides(lr=0.01), "learning rate × 0.01")
    if session.whole and stage != "param" and any(fix.cured for fix in tried):
        session.luck.times = max(session.luck.times, TRIES)  # they act on nothing before the update: that was luck
    if _reduced(session):
        in_precision("fp32", "the whole step in single precision")
    if _reduced(session) and session.runner.train_step.autocast != "bf16":
        in_precision("bf16", "bfloat16 instead of half precision")
    tried.append(Fix(name="fp64", cured=precise is False, how=f"the whole step in double precision{remark}"))
    if found.samples:
        attempt("drop_sample", Overrides(batch=samples.drop(found.samples)), f"without sample {', '.join(map(str, found.samples))}")
    cleaned = "non-finite inputs set to 0, the rest clamped to ±1e4"
    if session.lead or any(map(_unclean, tensors_in(session.batch))):
        attempt("sanitize_input", Overrides(batch=sanitized), cleaned)
    else:
        tried.append(Fix(name="sanitize_input", cured=False, how=f"{cleaned}: changes nothing in this batch"))
    if session.runner.scaler is not None:
        attempt("loss_scale", Overrides(loss_scale=1.0), "loss scale 1")
    fresh = None
    session.runner.restore(session.before)
    if session.optimizer_tensors():
        fails = session.fails(Overrides(fresh_optimizer=True)) if stage == "param" else True  # loss and gradients do not depend on it
        fresh = None if fails is None else not fails
    if found.phase == "optimizer" and found.line is None:
        attempt("eps", Overrides(eps=1e-4), "optimizer eps at least 1e-4")
    suggestion = (
        _epsilon(found, c, session, tried)
        if found.line is not None and c is not None and c.op and found.phase in ("forward", "backward", "optimizer")
        else None
    )
    return replace(found, fixes=tuple(tried), how=tuple(how), suggestion=suggestion, fresh_state=fresh)


def _reduced(session: Reruns) -> bool:
    return session.runner.train_step.autocast is not None or any(p.dtype in _HALF for p in session.runner.named_parameters().values())


def _epsilon(found: Culprit, c: Candidate, session: Reruns, tried: list[Fix]) -> str | None:
    op = c.op.strip("_") if c.op else ""
    op = {"true_divide": "div", "divide": "div", "addcdiv": "div", "linalg_vector_norm": "norm"}.get(op, op.removeprefix("native_"))
    if not singular(op) or found.file is None or found.line is None:
        return None
    for eps in (1e-6, 1e-4):
        at = AtLine(found.file, found.line, op, eps)
        fails = session.fails(modes=(at,))
        if at.used == 0:
            return None
        if fails is False:
            tried.append(Fix(name="eps", cured=True, how=f"{op} at line {found.line} kept {eps:g} away from its singularity"))
            return suggested_line(found.file, at.spans or [c.hits[0].where.span], found.line, op, 1 if at.whole else eps, at.signed)
    tried.append(Fix(name="eps", cured=False, how=f"{op} at line {found.line} kept 1e-6 and 1e-4 away from its singularity"))
    return None


def _unclean(t: torch.Tensor) -> bool:
    """Whether `sanitized` changes it."""
    if not t.is_floating_point() or t.layout != torch.strided or not t.numel():
        return False
    return not bool(t.detach().float().abs().amax() <= LARGEST_INPUT)


def sanitized(batch: Any) -> Any:
    """The batch with non-finite values set to 0 and the rest clamped to ±LARGEST_INPUT."""

    def clean(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point() or t.layout != torch.strided:
            return t
        return torch.nan_to_num(t.detach(), 0.0, 0.0, 0.0).clamp(-LARGEST_INPUT, LARGEST_INPUT).requires_grad_(t.requires_grad)

    return tensor_map(clean, batch)
