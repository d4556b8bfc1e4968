"""What makes a loss or a gradient grow: each suspect is changed in a further run of the command."""

from __future__ import annotations

import linecache
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.attach.growth.course import course_of
from postmortem.attach.growth.deaths import gone_silent
from postmortem.attach.growth.runs import Runs
from postmortem.core.culprit import Culprit, Fix
from postmortem.core.model import DEATH, RATE, RISE
from postmortem.core.printable import number
from postmortem.replay.culprit.calm import departed

if TYPE_CHECKING:
    from postmortem.attach.answers import Process
    from postmortem.attach.growth.course import Course, Seen
    from postmortem.attach.growth.runs import Start
    from postmortem.attach.steps import Mapping
    from postmortem.core.culprit import ReplayResult
    from postmortem.replay.culprit.calm import Left
    from postmortem.replay.roll.sought import Sought

_BEFORE = 25  # steps before the growth from which on a change is made
_WEIGHTS = 10  # steps before a jump whose weights are used with its batch
_ROSE = 1.5  # a learning rate that is more than so many times the one before
_TRIED = 3  # modules
_LARGE = 10.0  # times the gradient norms before, of one that is told
_SMALLER, _TINY = 0.1, 0.01  # factors of the learning rate: of a growth, of the one step before a jump


def explained(
    result: ReplayResult, process: Process, mapping: Mapping | None, sought: Sought, start: Start, *, fixes: bool
) -> ReplayResult:
    """The result with what makes the growth or jump, where it names nobody and follows the log. fixes: what would cure
    it is tried beside what is needed to name somebody."""
    if result.culprit.phase != "none" or not result.fidelity.ok or mapping is None:
        return result
    how = list(result.culprit.how)
    with Runs(process, mapping, start) as runs:
        return _explained(result, process, runs, sought, how, fixes=fixes)


def _explained(
    result: ReplayResult, process: Process, runs: Runs, sought: Sought, how: list[str], *, fixes: bool
) -> ReplayResult:
    base = runs.run(None, process.ticks + (process.fault is not None))  # the loss of a fault is in no tick that ended
    course = course_of(base, sought) if base is not None else None
    if base is None or course is None:
        how.append(f"a second run, which is measured, does not show the {sought.name} of step {sought.step}")
        return replace(result, culprit=replace(result.culprit, how=tuple(how)))
    level = f"the steps before have {number(course.level)} (median), more than {number(course.limit)} is not calm"
    value = number(base.values(sought)[course.first])
    how.append(f"the {course.what} leaves its course at step {course.first} ({value}); {level}")
    culprit, following = Suspects(runs, base, course, how, fixes=fixes).named()
    culprit = replace(culprit, step=sought.step, fidelity=result.fidelity, how=tuple(how))
    found = replace(result, culprit=culprit, step=sought.step)
    return replace(found, judged=True, next=following) if culprit.phase != "none" else found


class Suspects:
    """The suspects, in turn: units that died, the data, the learning rate, one layer, the size of the updates."""

    def __init__(self, runs: Runs, base: Seen, course: Course, how: list[str], *, fixes: bool = True) -> None:
        self.runs, self.base, self.course, self.how = runs, base, course, how
        self.spike = course.sought.kind == "spike"
        self.earliest, self.fixes = min(base.losses), fixes
        self._held = False
        """Without updates it stays calm."""

    def named(self) -> tuple[Culprit, tuple[str, ...]]:
        """(the culprit, what to do)."""
        for suspect in (self._died, self._data, self._rate, self._rising, self._layer, self._updates):
            found = suspect()
            if found is not None:
                return found
        self.how.append("nothing that was tried keeps it calm")
        return Culprit(cause="none", phase="none", established="observed"), ()

    def _half_as_high(self, peak: float) -> bool:
        """Whether a run without updates is as high as the program's own, or at least half as far from the level."""
        level, own = self.course.level, self.course.peak(self.base)
        return peak > self.course.limit and (peak == own or peak - level > 0.5 * (own - level))

    def _leaves_as_well(self, run: Seen) -> bool:
        """Whether a run without updates leaves the course at the same step, at least half as far from the level. The
        updates may make more of it later."""
        course = self.course
        now, own = run.values(course.sought).get(course.first, math.nan), self.base.values(course.sought)[course.first]
        return now > course.limit and now - course.level > 0.5 * (own - course.level)

    def _try(self, name: str, what: str, begin: int, end: int, **change: Any) -> Fix | None:
        """The outcome of `_run`."""
        ran = self._run(name, what, begin, end, **change)
        return ran[1] if ran is not None else None

    def _run(self, name: str, what: str, begin: int, end: int, **change: Any) -> tuple[Seen, Fix] | None:
        """A run with a change of the steps from `begin` to `end`, and its outcome; None where it tells nothing."""
        course, ticks = self.course, self.base.ticks
        order = {"begin": ticks[begin], "end": ticks.get(end + 1, ticks[end] + 1) - 1, **change}
        run = self.runs.run(order, ticks.get(course.until + 1, ticks[course.until] + 1))
        if run is None or not run.used:
            why = "could not be run" if run is None else "has no effect"
            self.how.append(f"{what}: {why}")
            return None
        peak = course.peak(run)
        reached = f"at most {number(peak)}" if math.isfinite(peak) else "not finite"
        upto = f" up to step {course.until}" if course.until > course.first else f" at step {course.first}"
        said = f"{what}: the {course.what} is {reached}{upto}, instead of {number(course.peak(self.base))}"
        self.how.append(said)
        return run, Fix(name=name, cured=course.calm(run), how=said)

    def _died(self) -> tuple[Culprit, tuple[str, ...]] | None:
        """All units of a hidden layer, at the first step of the growth or before: no sample makes a difference now."""
        step = gone_silent(self.base, self.course)
        tick = self.base.ticks.get(step) if step is not None else None
        death = self.runs.death(tick) if tick is not None else None
        steps = {tick: step for step, tick in self.base.ticks.items()}
        if death is None or death.dead not in steps or death.dead > death.alive + 1:
            return None
        since, written = steps[death.dead], death.written
        said = f"all units of the ReLU after {death.layer} are 0 for every sample from step {since} on"
        self.how += [f"{said}: the output no longer depends on the input"] + ([death.how] if death.how else [])
        begin = max(self.earliest, since - 1)
        if written is None and (of_rate := self._rate() or self._rising()) is not None:
            culprit, following = of_rate
            rise = {RATE: f"{culprit.tensor[RATE]}, and {said}"}
            return replace(culprit, cause="dead-relu", module=death.module, tensor={**rise, "since": since}), following
        hold = f"weights of {death.module} held from step {begin} on"
        fix = self._try("hold_layer", hold, begin, self.course.until, hold=death.module)
        culprit = Culprit(
            cause="dead-relu",
            phase="parameters" if written is not None else "optimizer",
            module=death.module,
            tensor={DEATH: f"{said}; {death.how}" if death.how else said, "since": since},
            fixes=(fix,) if fix is not None else (),
            established="cured" if fix is not None and fix.cured else "observed",
        )
        if written is None:
            return culprit, (f"find out what makes the update of step {begin} so large, or lower the learning rate",)
        at = written.at
        if at is not None:
            code = linecache.getline(at.file, at.line).strip() or None
            culprit = replace(culprit, file=at.file, line=at.line, code=code)
        where = f"{at.file}:{at.line}" if at is not None else "the program"
        return culprit, (f"find out why {where} changes {death.layer} outside of optimizer.step()",)

    def _data(self) -> tuple[Culprit, tuple[str, ...]] | None:
        begin = max(self.earliest, self.course.first - (_WEIGHTS if self.spike else _BEFORE))
        what = f"all weights held from step {begin} on"
        held = self._run("hold_layer", what, begin, self.course.until, hold="")
        if held is None:
            return None
        run, fix = held
        self._held = fix.cured
        whole = self._half_as_high(self.course.peak(run))
        if not whole and not self._leaves_as_well(run):
            return None
        where = f"the batch of step {self.course.first}" if self.spike else f"the batches from step {self.course.first}"
        leaves = f"the {self.course.what} leaves its course"
        self.how.append(f"{leaves} without the updates of these steps as well: the data")
        rise = {RISE: f"{leaves} at step {self.course.first} without any update from step {begin} on as well"}
        found = Culprit(cause="bad-input", phase="data", established="observed", tensor=rise)
        if whole:
            return found, (f"inspect {where}: the weights of step {begin} give a {self.course.what} as high with them",)
        first = self.course.first
        more = "and what else the loss is computed from (targets, weights of its terms, a schedule)"
        return found, (f"inspect {where}, {more}: it changes at step {first}, without any update as well",)

    def _rate(self) -> tuple[Culprit, tuple[str, ...]] | None:
        base, course = self.base, self.course
        rose = [s for s in range(max(self.earliest + 5, course.first - _BEFORE), course.first) if self._rises(s)]
        if not rose:
            return None
        step = rose[-1]
        groups = self._rises(step)
        usual, now = base.rates[step - 1], base.rates[step]
        one, high = number(usual[groups[0]]), number(now[groups[0]])
        part = "" if len(groups) == len(now) else f" of parameter group {', '.join(map(str, groups))}"
        factors = [a / b if i in groups else 1.0 for i, (a, b) in enumerate(zip(usual, now, strict=True))]
        kept = f"learning rate{part} of step {step - 1}, {one}, from step {step} on"
        fix = self._try("lower_lr", kept, step, course.until, rate=factors)
        if fix is None or not fix.cured:
            return None
        module = self._owner(groups) if part else None
        whose = f", which holds the parameters of {module}," if module else ""
        rise = f"the learning rate{part}{whose} goes from {one} to {high} at step {step}"
        self.how.append(rise)
        fixes = (fix, *self._more(step, rate=False))
        todo = f"find out why the learning rate{part} rises to {high} at step {step}: with {one} it stays calm"
        return _of_rate(rise, fixes, module), (todo,)

    def _rising(self) -> tuple[Culprit, tuple[str, ...]] | None:
        """A learning rate that rises in many steps, by less than a jump in each: kept at that of half of the way."""
        base, course = self.base, self.course
        begin = max(self.earliest, course.first - _BEFORE)
        middle = course.first - (course.first - begin) // 2
        first, then, last = (base.rates.get(step, []) for step in (begin, middle, course.first))
        if begin == course.first or not len(first) == len(then) == len(last):
            return None
        groups = [i for i, (a, b) in enumerate(zip(first, last, strict=True)) if b > _ROSE * a >= 0]
        if not groups or all(last[i] <= then[i] for i in groups):
            return None
        low, kept, high = (number(max(rates[i] for i in groups)) for rates in (first, then, last))
        most = [then[i] if i in groups else math.inf for i in range(len(last))]
        part = "" if len(groups) == len(last) else f" of parameter group {', '.join(map(str, groups))}"
        what = f"learning rate{part} kept at {kept}, the one of step {middle}"
        fix = self._try("lower_lr", what, middle, course.until, most=most)
        if fix is None or not fix.cured:
            return None
        rise = f"the learning rate{part} rises from {low} at step {begin} to {high} at step {course.first}"
        self.how.append(rise)
        fixes = (fix, *self._more(middle, rate=False))
        return _of_rate(rise, fixes), (
            f"{rise}: find out why, or keep it at {kept}, with which the {course.what} stays calm",
        )

    def _rises(self, step: int) -> list[int]:
        """The parameter groups whose learning rate rises at this step."""
        before, now = self.base.rates.get(step - 1, []), self.base.rates.get(step, [])
        if len(before) != len(now):
            return []
        return [i for i, (a, b) in enumerate(zip(before, now, strict=True)) if b > _ROSE * a > 0]

    def _owner(self, groups: list[int]) -> str | None:
        """The innermost module that has all parameters of these groups."""
        names = [name for i in groups for name in (self.base.groups[i] if i < len(self.base.groups) else [""])]
        first, *others = [name.split(".")[:-1] for name in names]
        while any(other[: len(first)] != first for other in others):
            first = first[:-1]
        return ".".join(first) or None

    def _layer(self) -> tuple[Culprit, tuple[str, ...]] | None:
        course = self.course
        left = departed(self.base.gains, min(course.first + 1, course.until))[:_TRIED]
        if left:
            told = [f"{g.module} (step {g.step}, {number(g.usual)} to {number(g.gain)})" for g in left]
            self.how.append(f"gains that leave their course, the first first: {', '.join(told)}")
        for found in left:
            # a slow growth has begun before its gain stands out: held from there on, values stay as high as they are
            begins = [max(self.earliest, found.step - 1)]
            if (before := min(found.step, self.course.first) - _BEFORE) > self.earliest:
                begins.append(before)
            for begin in begins:
                fix = self._held_alone(found.module, begin)
                if fix is not None:
                    return self._of_layer(found, fix, begin)
        return None

    def _held_alone(self, module: str, begin: int) -> Fix | None:
        """The trial with the weights of a module held, where that keeps it calm and all others held do not."""
        until = self.course.until
        what = f"weights of {module} held from step {begin} on"
        fix = self._try("hold_layer", what, begin, until, hold=module)
        if fix is None or not fix.cured:
            return None
        what = f"weights of all others held from step {begin} on"
        rest = self._try("hold_layer", what, begin, until, hold_others=module)
        return fix if rest is not None and not rest.cured else None

    def _of_layer(self, found: Left, fix: Fix, begin: int) -> tuple[Culprit, tuple[str, ...]]:
        file, line = self.base.places.get(found.module, (None, None))
        culprit = Culprit(
            cause="exploding-layer" if found.gain > found.usual else "dead-layer",
            phase="forward",
            module=found.module,
            file=file,
            line=line,
            code=linecache.getline(file, line).strip() or None if file and line else None,
            tensor={"usual_gain": found.usual, "gain": found.gain, "since": found.step},
            fixes=(fix, *self._more(begin, rate=True)),
            established="cured",
        )
        todo = f"look at what is special about {found.module}: its own learning rate, weight decay, or initial values"
        large = self._large_gradient(begin)
        return culprit, (*large, f"{todo}; held, the {self.course.what} stays calm")

    def _updates(self) -> tuple[Culprit, tuple[str, ...]] | None:
        first = self.course.first
        begin = max(self.earliest, first - (1 if self.spike else _BEFORE))
        end = begin if self.spike else self.course.until
        fixes = (*self._smaller(begin, end, _TINY if self.spike else _SMALLER), *self._clipped(begin))
        cured = [fix for fix in fixes if fix.cured]
        if not cured and not self._held:
            return None
        cause = "optimizer-update" if self.spike else "divergence"
        if not cured:
            self.how.append("without updates it stays calm; smaller or clipped ones do not keep it so")
            look = "look for what turns the updates against the loss: its sign, the targets, what changes the gradients"
            return Culprit(cause=cause, phase="optimizer", fixes=fixes, established="observed"), (look,)
        todo = {"lower_lr": "lower the learning rate", "clip_grad": "clip the gradient norm"}
        following = tuple(f"{todo[fix.name]} ({fix.how})" for fix in cured)
        following = (*(self._large_gradient(begin) if self.spike else ()), *following)
        return Culprit(cause=cause, phase="optimizer", fixes=fixes, established="cured"), following

    def _more(self, begin: int, *, rate: bool) -> tuple[Fix, ...]:
        """What is tried beside the change that names the culprit."""
        if not self.fixes:
            return ()
        smaller = self._smaller(begin, self.course.until, _SMALLER) if rate else ()
        return (*smaller, *self._clipped(begin))

    def _smaller(self, begin: int, end: int, factor: float) -> tuple[Fix, ...]:
        when = f"at step {begin}" if begin == end else f"from step {begin} on"
        fix = self._try("lower_lr", f"learning rate × {factor:g} {when}", begin, end, rate=factor)
        return (fix,) if fix is not None else ()

    def _clipped(self, begin: int) -> tuple[Fix, ...]:
        """The gradients no larger than those of the calm steps before."""
        norms = self._norms_before(begin) or self._norms_before(begin + 1)
        if not norms:
            return ()
        what = f"gradient norm at most {number(max(norms))} from step {begin} on, the largest of the steps before"
        fix = self._try("clip_grad", what, begin, self.course.until, clip=max(norms))
        return (fix,) if fix is not None else ()

    def _norms_before(self, step: int) -> list[float]:
        return [v for s, v in self.base.norms.items() if step - _BEFORE <= s < step and math.isfinite(v)]

    def _large_gradient(self, step: int) -> tuple[str, ...]:
        """What to do about a gradient far above those of the steps before, if that of `step` is."""
        usual, now = self._norms_before(step), self.base.norms.get(step, 0.0)
        if not usual or not now > _LARGE * max(usual):
            return ()
        seen = f"the gradient norm of step {step} is {number(now)}, of the steps before at most {number(max(usual))}"
        self.how.append(seen)
        return (f"find out what makes the gradient of one step so large: {seen}",)


def _of_rate(rise: str, fixes: tuple[Fix, ...], module: str | None = None) -> Culprit:
    """The culprit of a learning rate that rose, in words."""
    return Culprit(
        cause="optimizer-update",
        phase="optimizer",
        tensor={RATE: rise},
        fixes=fixes,
        established="cured",
        module=module,
    )
