"""Which step to roll to, and which checkpoint to start from."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.errors import ReplayError
from postmortem.readers._checkpoints import find_checkpoints, home_of, step_of
from postmortem.replay.health import inspect
from postmortem.replay.layout import layout

if TYPE_CHECKING:
    from postmortem.core.model import Checkpoint, Finding, RunReport
    from postmortem.core.timeline import Run
    from postmortem.core.view import View

_NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite")
_GROWING = ("divergence", "gradient-explosion", "loss-spike", "loss-scale-collapse")


_NOT_OF_A_STEP = ("val_loss", "val_accuracy", "accuracy", "perplexity", "reward")  # what evaluations log
_FAR = 1000  # steps to follow a divergence that never turns non-finite


@dataclass(frozen=True, slots=True)
class Aim:
    """What a replay is to reach: `step` is the last to run (None: as far as the batches go), `asked` the one that the user
    named. `failed`: the log says the run failed; `nonfinite`: its value at `step` is not finite. `beyond`: steps to go on
    after it, where a run crashed before it could log the step at fault. `masked`: from this step on the log may show
    numbers in place of losses that were not finite. `grows`: what failed is a loss or gradient that grew."""

    step: int | None
    asked: int | None = None
    failed: bool = False
    nonfinite: bool = False
    beyond: int = 0
    masked: int | None = None
    grows: bool = False


def aim_at(view: View | None, report: RunReport | None, asked: int | None) -> Aim:
    """The step to roll to: the one asked for, else the first non-finite loss by the log, else what diverged, else the end.

    Where the log has a divergence begin at the step asked for, that is what is meant: it shows only some steps later.
    """
    findings = [f for f in report.findings if f.severity != "info" and f.step is not None] if report is not None else []
    roles = view.run.roles if view is not None else {}
    bad = [f for f in findings if f.name in _NONFINITE and f.severity == "error" and roles.get(f.tag or "") not in _NOT_OF_A_STEP]
    gradients = [f for f in bad if f.name == "nonfinite-gradient" or roles.get(f.tag or "") == "grad_norm"]
    losses = [f for f in bad if roles.get(f.tag or "") == "loss" and f.name != "masked-nonfinite"]
    replaced = [f for f in findings if f.name == "masked-nonfinite"]
    # a loss that stays finite while its gradient does not was replaced, too, or is a mean of what was finite
    masked = min(_steps([*replaced, *gradients])) if replaced or (gradients and not losses) else None
    unasked = replace(_by_log(view, report, findings, bad, losses, gradients), masked=masked)
    if asked is None:
        return unasked
    grows = any(f.step == asked for f in findings if f.name in _GROWING)
    if grows and unasked.step is not None and unasked.step > asked:
        return replace(unasked, asked=asked)
    return Aim(asked, asked, True, any(f.step == asked for f in bad), masked=masked)


def _by_log(
    view: View | None, report: RunReport | None, findings: list[Finding], bad: list[Finding], losses: list[Finding], gradients: list[Finding]
) -> Aim:
    failed = report is not None and report.verdict == "failed"
    if bad:
        return Aim(min(_steps(losses or gradients)) if losses or gradients else max(_steps(bad)), None, True, True)
    growing = [f for f in findings if f.name in _GROWING]
    last = view.last_step if view is not None else None
    if growing:
        ends = [s for f in growing if f.name != "divergence" and (s := f.end_step if f.end_step is not None else f.step) is not None]
        far = max(f.step for f in growing if f.step is not None) + _FAR
        return Aim(max(ends) if len(ends) == len(growing) else min(far, last if last is not None else far), None, failed, grows=True)
    crashed = report is not None and report.ended in ("crashed", "cut") and last is not None
    return Aim(last, None, failed, False, _interval(view) if crashed and view is not None else 0)


def _interval(view: View) -> int:
    """Steps between two lines of the log, as the loss has them."""
    series = view.main("loss") or next(iter(view.series), None)
    return max(1, int(np.median(np.diff(series.step)))) if series is not None and len(series) > 1 else 1


def _steps(findings: list[Finding]) -> list[int]:
    return [f.step for f in findings if f.step is not None]


def choose_checkpoint(target: Path, run: Run | None, report: RunReport | None, aim: Aim, given: Path | None) -> Path:
    """The checkpoint to start from: the one given, the diagnosis' last good one, else the newest finite one before the step.

    ReplayError where there is none, or where the one given lies after the step.
    """
    known = list(run.checkpoints) if run is not None and run.checkpoints else find_checkpoints(target)
    good = report.diagnosis.last_good_checkpoint if report is not None and report.diagnosis is not None else None
    steps = {Path(c.path).resolve(): c.step for c in known}
    if given is not None:
        return _given(given, aim, good, steps)
    if run is None and len(known) == 1 and Path(known[0].path) == target:
        return target
    if not known:
        raise ReplayError(f"no checkpoint in {target}: give --checkpoint PATH")
    step = _step(Path(good), steps) if good is not None else None
    if good is not None and _before(step, aim) and (step is None or step != aim.step):
        return Path(good)
    known = [c if c.step is not None else _with_step(c) for c in known]
    candidates = [c for c in known if _before(c.step, aim)]
    if not candidates:
        first = min(known, key=lambda c: c.step or 0)
        raise ReplayError(f"no checkpoint before step {aim.step}: the earliest is {first.path} (step {first.step})")
    return Path(_newest_finite(candidates, aim).path)


def _with_step(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint whose name tells no step (``last.pt``, ``epoch_3.pt``), with the one that its content says."""
    return replace(checkpoint, step=layout(Path(checkpoint.path)).step)


def _step(path: Path, known: dict[Path, int | None]) -> int | None:
    """The step of a checkpoint as the scan of its run understood it, else as its name says."""
    step = known.get(path.resolve())
    return step_of(path) if step is None else step


def _given(path: Path, aim: Aim, good: str | None, known: dict[Path, int | None]) -> Path:
    if not path.exists():
        raise ReplayError(f"no such checkpoint: {path}")
    step = _step(path, known)
    if not _before(step, aim):
        tail = f"; the last good one is {good}" if good and _step(Path(good), known) != step else ""
        raise ReplayError(f"the checkpoint {path.name} is of step {step}, not before step {aim.step}, where the replay is to end{tail}")
    return path


def _before(step: int | None, aim: Aim) -> bool:
    """Whether a checkpoint of `step` can lead to the step aimed at: one that saves the step to come may be of that step."""
    return step is None or aim.step is None or step <= aim.step


def _newest_finite(candidates: list[Checkpoint], aim: Aim) -> Checkpoint:
    """The newest that is finite; where none is, the newest of all: a run that started from it is told so by the replay.

    One saved at the very step aimed at comes last: whether it is from before or after that step only the log tells.
    """
    ordered = sorted(candidates, key=lambda c: (c.step != aim.step, c.step is not None, c.step or 0), reverse=True)
    for c in ordered:
        if c.finite or (c.finite is None and inspect(Path(c.path)).finite):
            return c
    return ordered[0]


def config_of(run: Run | None, target: Path) -> dict[str, Any]:
    """The run's configuration: ``config.json`` or ``hparams.yaml`` beside its log, over what the log itself holds."""
    config = dict(run.config) if run is not None else {}
    folder = target if target.is_dir() else target.parent
    own = Path(run.path) if run is not None else folder  # below the target, as Lightning's version_0/ is
    folders = [folder, folder.parent] if run is None else [own if own.is_dir() else own.parent, folder, home_of(folder)]
    for path in [f / n for f in folders for n in ("config.json", "hparams.json", "args.json", "hparams.yaml", "config.yaml")]:
        if path.is_file() and path.stat().st_size < 1 << 20:
            found = _read_config(path)
            if isinstance(found, dict) and found:
                return {**config, **found}
    return config


def _read_config(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError:
            return None  # the scan has reported it as a problem of the run
    return flat_yaml(text)


def flat_yaml(text: str) -> dict[str, Any]:
    """The ``key: value`` lines at the top level of a YAML file, which is what Lightning's hparams.yaml is."""
    config: dict[str, Any] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key and not key[0].isspace() and not key.startswith(("#", "-")):
            config[key.strip()] = _scalar(value.split(" #")[0].strip())
    return config


def _scalar(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "~": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")
