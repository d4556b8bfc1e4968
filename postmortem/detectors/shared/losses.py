"""Which losses to judge: the total if there is one; and whether several compete."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.roles import is_error, is_total
from postmortem.core.stats import median
from postmortem.detectors.shared.nonfinite import before_break

if TYPE_CHECKING:
    from postmortem.core.series import Series
    from postmortem.core.view import View


def judged_losses(view: View, points: int) -> tuple[list[Series], bool]:
    """The finite training losses to judge, longest first, and whether they compete (GANs, reinforcement learning)."""
    losses = totals(view, "loss", points)
    alike = {s.tag for s in losses if not is_total(s.tag) and len(s) > 0.5 * len(losses[0])}
    return losses, (len(alike) > 1 or _competes(view)) and not scores_nothing(view)


def totals(view: View, role: str, points: int) -> list[Series]:
    """The finite series of a role with enough points, up to where they broke. If one tag is clearly the total, its
    parts are left out: a regularisation term may rise by design."""
    found = [s for s in _courses(view, role) if len(s) >= points]
    whole = {s.tag for s in found}
    found = [s for s in found if not _INDEX.search(s.tag) or _INDEX.sub("", s.tag, count=1) not in whole]
    return [s for s in found if is_total(s.tag)] or found


def _courses(view: View, role: str) -> list[Series]:
    """The finite series of a role up to where they broke, as far as their points are in an order of time."""
    found: list[Series] | None = view.cache.get(("courses", role))
    if found is None:
        found = [
            s for s in (_last_attempt(before_break(raw).finite) for raw in view.of(role)) if not _is_no_course(view, s)
        ]
        view.cache["courses", role] = found
    return found


def _last_attempt(series: Series) -> Series:
    """Of a series at epochs beside steps, the points since its epochs started over: a new training in the same log."""
    if series.epoch is None:
        return series
    over = np.flatnonzero((np.diff(series.epoch) < 0) & (series.epoch[1:] <= series.epoch[0])) + 1
    return series.take(slice(int(over[-1]), None)) if len(over) else series


_INDEX = re.compile(r"[_/. -](?:[A-Za-z]{0,6}\d{1,3})(?=[_/. -]|$)")
"""The number of a part in its name: ``mse_q2_mean`` beside ``mse_mean``, ``loss_ce_0`` beside ``loss_ce``."""


def _is_no_course(view: View, series: Series) -> bool:
    """Whether points are in no order of time: all at one step, as a table of several models; or in a table that several
    programs wrote at once; or errors of evaluations (MAPE, RMSE) that a log prints without a step, which may be of
    different data or different models."""
    if any("interleaved" in reading.facts for reading in view.run.readings):
        return True
    if view.run.step_axis == "row":
        return is_error(series.tag) and all(reading.source == "text" for reading in view.run.readings)
    return len(series) > 1 and int(series.step[0]) == int(series.step[-1])


def scores_nothing(view: View) -> bool:
    """Whether scores or rewards are logged and all stay near zero: then no competition excuses a loss that rises."""
    if "scores nothing" not in view.cache:
        view.cache["scores nothing"] = _scores_nothing(view)
    return bool(view.cache["scores nothing"])


def _scores_nothing(view: View) -> bool:
    scores = [s.finite.value for s in view.of("val_accuracy", "accuracy") if len(s.finite) >= 8]
    rewards = [s.finite.value for s in view.of("reward") if len(s.finite) >= 8]
    return bool(scores or rewards) and (
        all(median(x[len(x) // 2 :]) <= _NO_SCORE * (100 if x.max() > 1 else 1) for x in scores)
        and all(float(np.abs(x).max()) <= _NO_REWARD for x in rewards)
    )


_NO_SCORE, _NO_REWARD = 0.03, 0.01
"""The usual score in the second half of a run that learned nothing, a fraction, and the highest reward of all of it."""
_DISCRIMINATOR = re.compile(
    r"(?i:(?:^|[/_ .-])(?:d\d?|disc|discriminator|err_?d\d?)(?=[/_ .-]|$))|(?:^|[/_ .-])D(?=[A-Z][a-z])"
)
_GENERATOR = later(r"(?i:(?:^|[/_ .-])(?:g\d?|gen|generator|err_?g|adv)(?=[/_ .-]|$))|(?:^|[/_ .-])G(?=[A-Z][a-z])")
_GUESSING = 2.1
"""What a discriminator that guesses loses at most: 1.39 (cross-entropy), 2 (hinge), 0.5 to 1 (squares); and noise."""


def of_a_guessing_discriminator(view: View, series: Series, end: float) -> bool:
    """Whether a loss that rose to `end` is that of a discriminator beside a generator, and no higher than by guessing.

    That is where the training of both is to end; the loss of one that is ahead at first rises to it.
    """
    others = [s for s in view.of("loss") if s.tag != series.tag]
    spelled = "discriminator" in series.tag.lower() and bool(others)  # whatever its adversary is called
    both = spelled or (is_of_discriminator(series) and any(is_of_generator(s) for s in others))
    return both and end <= _GUESSING


def is_of_discriminator(series: Series) -> bool:
    """Whether the name of a loss says that it is a discriminator's: ``Loss_D``, ``errD``, ``disc/loss``."""
    return _DISCRIMINATOR.search(series.tag) is not None


def is_of_generator(series: Series) -> bool:
    """Whether the name of a loss says that it is a generator's: ``Loss_G``, ``errG``, ``adv_loss``."""
    return _GENERATOR.search(series.tag) is not None


_POLICY = later(r"(?:^|[/_ .-])(?:policy|actor|pi|pg|entropy)(?=[/_ .-]|$)", re.I)
_RETURN = re.compile(r"rew|ret(?:urn)?s?(?=[/_ .-]|$)", re.I)


def follows_the_return(view: View, series: Series, since: int, rise: float) -> bool:
    """Whether a loss that is no policy's rose by `rise` (in log) since a step no more than the returns explain.

    The error of a value function is squared: it grows with the square of the returns that it predicts.
    """
    if _POLICY.search(series.tag):
        return False
    for returns in (s.finite for s in view.of("reward") if _RETURN.search(s.tag)):
        then = returns.value[returns.step <= since][-10:]
        lately = returns.value[-max(3, len(returns) // 10) :]
        if len(then) and len(returns) >= 10 and 0 < median(then) < median(lately):
            return bool(rise <= 2 * np.log(median(lately) / median(then)))
    return False


_EXPLORATION = later(r"(?i)(?:^|[/_ .-])(?:eps|epsilon|ε|exploration[_ ]?(?:rate|prob|eps\w*)?)$")


def _competes(view: View) -> bool:
    """Whether a reward or a share of random actions shows reinforcement learning."""
    if "competes" not in view.cache:
        view.cache["competes"] = _rewarded(view) or _explores(view)
    return bool(view.cache["competes"])


def _explores(view: View) -> bool:
    """Whether a share of random actions is logged: the loss is an error of action values and grows with them."""
    rates = (s.finite.value for s in view.series if s.role is None and _EXPLORATION.search(s.tag))
    return any(len(x) > 3 and bool(((x >= 0) & (x <= 1)).all() and (np.diff(x) <= 0).all()) for x in rates)


def _rewarded(view: View) -> bool:
    """Whether a reward is logged that goes up and down (one that only grows is a counter)."""
    return any(len(s) > 3 and bool((np.diff(s.value) < 0).mean() > 0.05) for s in (r.finite for r in view.of("reward")))
