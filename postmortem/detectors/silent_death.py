from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postmortem.core.model import Finding
from postmortem.detectors import detector
from postmortem.detectors._base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View

_TOTALS = (
    "max_steps",
    "total_steps",
    "num_train_steps",
    "max_iters",
    "train_iters",
    "total_iterations",
    "num_iterations",
    "max_train_steps",
    "iterations",
)
_EPOCHS = ("num_train_epochs", "max_epochs", "num_epochs", "epochs", "n_epochs", "total_epochs")


@detector
class SilentDeath(BaseDetector):
    """The log stops in the middle of the training and nothing says why.

    What it looks for: a run that was to do more steps (or epochs) than it did, with no error, no message of a
    scheduler and no sign of an end.

    Why it matters: a process killed from outside (host memory, node failure, scancel, power) leaves no traceback.

    How: the number of steps or epochs that the log, the progress bar or the configuration announces, against the last one
    logged; W&B files that end without an exit record. Less than `share` of the plan done is a silent death. A counter that starts
    again in every epoch is a share of an epoch; one that is printed every 50 steps is at its end when fewer than that are left.

    Typical causes: the kernel's out-of-memory killer, a preempted or failed node, a lost connection to the terminal,
    a full disk.

    What to try: dmesg and the job's accounting (sacct -j JOB --format=State,MaxRSS,ExitCode); the .err file of the job;
    run with nohup or under the scheduler.

    Known false positives: early stopping that prints nothing; a run that is still going on or was not synced to its end; an excerpt of
    a log.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Share of the announced steps below which the end is missing."""

        share: float = 0.95

    code = "RUN002"
    name = "silent-death"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        if view.run.ended not in ("unknown", "cut") or view.last_step is None or any(e.severity == "error" for e in view.events):
            return
        plan = self._plan(view)
        if plan is None or plan[0] >= self.options.share * plan[1]:
            yield from self._without_exit_record(view)
            return
        done, planned, unit = plan
        yield Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            message=f"the log stops {_where(done, planned, unit)} and nothing says why",
            step=view.last_step,
            evidence={"done": done, "planned": planned, "unit": unit},
        )

    def _without_exit_record(self, view: View) -> Iterator[Finding]:
        """W&B writes an exit record at every end that Python sees, errors and Ctrl-C included."""
        for reading in view.run.readings:
            if reading.source == "wandb" and "exit_code" in reading.facts and reading.facts["exit_code"] is None:
                yield Finding(
                    code=self.code,
                    name=self.name,
                    severity=self.severity,
                    message=f"the W&B file stops at step {view.last_step} without an exit record: the process was killed, or the file is not whole",
                    step=view.last_step,
                    evidence={"file": reading.path, "exit_code": None},
                )

    def _plan(self, view: View) -> tuple[float, float, str] | None:
        facts = [r.facts for r in view.run.readings]
        plans = [f["plan"] for f in facts if "plan" in f]
        if plans:  # of several files of a run the one that came farthest
            plan = max(plans, key=lambda p: p["done"] / p["planned"])
            done = max(plan["done"], view.last_step or 0) if plan["unit"] == "step" else plan["done"]
            return float(done), float(plan["planned"]), plan["unit"]
        config = {str(k).rsplit(".", 1)[-1].rsplit("/", 1)[-1]: v for k, v in view.run.config.items()}
        for source in (*facts, config):
            for key in _TOTALS:
                if (total := _positive(source.get(key))) and view.last_step is not None:
                    return float(view.last_step), total, "step"
        epoch = view.main("epoch")
        if epoch is not None and len(epoch.finite):
            for source in (*facts, config):
                for key in _EPOCHS:
                    if total := _positive(source.get(key)):
                        return float(epoch.finite.value.max()) + 1, total, "epoch"
        return None


def _where(done: float, planned: float, unit: str) -> str:
    """In words: at step 40 of 100, after epoch 3 of 10, in epoch 4 of 10."""
    if unit == "epoch" and done != int(done):
        return f"in epoch {int(done) + 1} of {planned:g}"
    return f"{'after' if unit == 'epoch' else 'at'} {unit} {done:g} of {planned:g}"


def _positive(value: Any) -> float | None:
    if isinstance(value, dict):  # W&B writes {"value": …}
        value = value.get("value")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number < 1e15 else None
