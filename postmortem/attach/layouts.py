"""`postmortem layout -- COMMAND`: gradients whose strides differ from their parameter's, and fixes tried under DDP."""

from __future__ import annotations

import json
import linecache
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.driver import shut_in
from postmortem.attach.layout.told import Told, read
from postmortem.attach.missing import check_given_paths
from postmortem.attach.printed import last_words
from postmortem.core.errors import ReplayError
from postmortem.core.layout import LayoutResult, LayoutTrial, StridedGradient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_STARTING = 120.0
"""Seconds for the start of a program, of which there are some: the look and a trial per change."""
_MOST_RUNS = 7
_WHAT = {
    "view": "a view in place of the permutation",
    "contiguous": "contiguous tensors where that line reads them",
    "gradient-hook": "p.register_hook(lambda g: torch.empty_like(p).copy_(g)), which g.contiguous() cannot replace",
    "parameter-layout": "the parameter in the memory layout of its gradient, before DDP is made",
    "no-bucket-view": "DistributedDataParallel(gradient_as_bucket_view=False)",
}


def layout(
    command: Sequence[str],
    *,
    recipe: str | None = None,
    iterations: int = 8,
    seconds: float = 60.0,
    ranks: int = 2,
    fix: bool = True,
    sandbox: str = "auto",
    offline: bool = True,
) -> LayoutResult:
    """Runs `command`, or the steps of a `recipe`, without effect on files, and says which gradients have other strides.

    iterations: backward passes at each line that are looked at, for at most so many seconds. ranks: processes of a
    trial of a program that does not use DDP itself; 1: it is tried without. fix: whether changes are tried. Raises
    ReplayError if no backward pass was seen.
    """
    if recipe is not None:
        command = [sys.executable, "-m", "postmortem.attach.layout.recipe_steps", recipe, str(iterations)]
    check_given_paths(command)
    started = time.monotonic()
    session = launch.new_session()
    plan: dict[str, Any] = {
        "mode": "layout",
        "layout": {"iterations": iterations, "seconds": seconds, "ranks": ranks, "fix": fix},
    }
    with shut_in(command, session, plan, session, offline=offline, sandbox=sandbox) as launched:
        folder = session / "layout"
        launched.wait(until=folder / "finished", timeout=_MOST_RUNS * (seconds + _STARTING))
        code = launched.returncode if launched.ended else None
        (session / "done").touch()
        if launched.failed:
            raise ReplayError(launched.failed)
        answers = Answers(session)
        look = read(folder / "look")
        if not look.seen:
            said = last_words(session)
            if recipe is not None and said.startswith("postmortem: "):
                raise ReplayError(said.removeprefix("postmortem: "))
            if not (session / "attached").exists():
                raise ReplayError(answers.unseen(code, said, command))
            ended = "it is running" if code is None else f"its exit code was {code}"
            raise ReplayError(
                f"the program ran no backward pass: {ended}" + (f"; it said last: {said}" if said else "")
            )
        trials = _trials(folder)
        result = _result(tuple(command), look, trials, time.monotonic() - started, tuple(answers.notes()))
    launched.remove()
    return result


def _trials(folder: Path) -> list[tuple[dict[str, Any], int, Told]]:
    path = folder / "trials.json"
    told = json.loads(path.read_text()) if path.exists() else []
    return [(each["change"], each["code"], read(folder / each["run"])) for each in told]


def _result(
    command: tuple[str, ...],
    look: Told,
    trials: list[tuple[dict[str, Any], int, Told]],
    seconds: float,
    notes: tuple[str, ...],
) -> LayoutResult:
    plain = next((told for change, _, told in trials if change["fix"] == "none" and told.replicated), None)
    base = plain or look
    own = plain is None and look.replicated
    return LayoutResult(
        command=command,
        gradients=tuple(_gradient(key[0], lines, look, plain) for key, lines in look.odd.items()),
        tried=tuple(_trial(change, code, told, base, look) for change, code, told in trials if change["fix"] != "none"),
        looked=max((line["gradients"] for line in look.of("backward")), default=0),
        iterations=look.iterations,
        warnings=base.warnings if base.replicated else None,
        ranks=len(base.processes),
        own_ddp=own,
        models=_once(look.of("init")),
        inputs=_once(look.of("input")),
        seconds=seconds,
        notes=tuple(dict.fromkeys(notes)),
    )


def _once(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Each fact once, as all ranks note the same."""
    known = {json.dumps(line, sort_keys=True): line for line in lines}
    return tuple({k: v for k, v in line.items() if k != "kind"} for line in known.values())


def _gradient(model: str, lines: list[dict[str, Any]], look: Told, plain: Told | None) -> StridedGradient:
    first = lines[0]
    several = len({line["model"] for line in look.of("init")}) > 1
    place = next((line["place"] for line in lines if line["place"]), None)
    key = (first["model"], first["parameter"])
    seen = (plain or look).processes
    ranks = sum(
        any(line["kind"] == "odd" and (line["model"], line["parameter"]) == key for line in process) for process in seen
    )
    return StridedGradient(
        model=model if several else "",
        parameter=first["parameter"],
        shape=tuple(first["shape"]),
        strides=tuple(first["strides"]),
        expected=tuple(first["expected"]),
        dtype=first["dtype"],
        device=first["device"],
        format=first["format"],
        difference=first["difference"],
        op=first["op"],
        file=place[0] if place else None,
        line=place[1] if place else None,
        code=linecache.getline(*place).strip() if place else "",
        beside=_pair(first["beside"]),
        called=_pair(first["called"]),
        phases=tuple(_phases(lines)),
        ranks=ranks,
        bytes=first["bytes"],
    )


def _pair(place: list[Any] | None) -> tuple[str, int] | None:
    return (place[0], place[1]) if place else None


def _phases(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per line at which a backward pass began; without one where a recipe is run, which has none."""
    found: dict[tuple[str, int], set[int]] = {}
    for line in lines:
        found.setdefault((line["phase"][0], line["phase"][1]), set()).add(line["iteration"])
    return [
        {"file": file or None, "line": line or None, "first": min(which), "last": max(which), "iterations": len(which)}
        for (file, line), which in found.items()
    ]


def _trial(change: dict[str, Any], code: int, told: Told, base: Told, look: Told) -> LayoutTrial:
    fix = change["fix"]
    before = base.warnings if base.replicated else None
    odd = base.odd or look.odd
    tried = LayoutTrial(fix, _WHAT[fix], before=before, odd_before=len(odd), cost=_cost(change, look, told))
    if not told.seen or told.iterations < min(look.iterations, base.iterations):
        return replace(tried, error=f"the program did not come as far with it (exit code {code})")
    if fix in ("view", "contiguous") and not told.of("changed"):
        return replace(tried, error="nothing at that line could be changed so")
    cured = tuple(f"{m}.{p}" for m, p in odd if (m, p) not in told.odd)
    after = told.warnings if told.replicated else None
    changed = _once(told.of("changed"))
    diffs = [line["diff"] for line in changed if line["diff"]]
    asked = {(p["model"], p["parameter"]) for p in change.get("parameters", ())} or set(odd)
    cures = bool(cured) and asked.isdisjoint(told.odd) and not after
    return replace(
        tried,
        cures=(cures and fix != "no-bucket-view") or (fix == "no-bucket-view" and bool(before) and after == 0),
        cured=cured,
        after=after,
        odd_after=len(told.odd),
        change="".join(dict.fromkeys(diffs)) or None,
    )


def _cost(change: dict[str, Any], look: Told, told: Told) -> str:
    """What a change costs, in words."""
    if change["fix"] == "gradient-hook":
        keys = {(p["model"], p["parameter"]) for p in change["parameters"]}
        size = sum(lines[0]["bytes"] for key, lines in look.odd.items() if key in keys)
        return f"a copy of {_bytes(size)} in each backward pass"
    if change["fix"] == "no-bucket-view":
        size = max((line["bytes"] for line in told.of("ddp")), default=0)
        return f"gradients beside the buckets: {_bytes(size)} more memory, and a copy into and out of them each step"
    return ""


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
