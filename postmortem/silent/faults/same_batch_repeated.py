from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import data_changes
from postmortem.silent.facts import Drawn, InputSeen, Seeded
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._inputs import assigned_above, chosen_at, loaders, read_at, training_inputs
from postmortem.silent.faults._words import count
from postmortem.silent.source import source
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Stacked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_STEPS = 10
_SAME = 0.9
_PART = re.compile(r"train|label|split|shot|subset|cut|half")
_PURPOSE = re.compile(r"overfit|sanity|(one|single|fixed)[ _]batch")


@fault
class SameBatchRepeated(BaseFault):
    """The model is trained on the same batch again and again, although there is more data.

    How it is found: the model gets the same input values at nearly all steps, and they are only part of the data: one
    batch of a DataLoader that has more, rows of a larger tensor that are sliced or stacked anew each time while most
    rows are never used, or numbers or rows that are drawn anew after the same seed was set.

    Not blamed: training on all of the data in each step; a part that the source names (`x[:n_train]`); a trial
    to overfit a batch, where the source says so.

    What to do: iterate over the loader with `for`, advance the slice, set the seed once before the loop.

    How to confirm: print `x.sum()` of the batches of a few steps.
    """

    code = "TRN040"
    name = "same-batch-repeated"
    family = "data"
    checks = "the batches differ"
    because_of = ("inputs-collapsed",)
    trial = Trial("the next batch of the loader each time", data_changes.going_on, by="fault")

    def seen(self, look: Look) -> str:
        return (
            _seen.of(look, InputSeen, "input of a model", "inputs of a model", lambda i: i.training and i.grad)
            + f", {len({i.digest for i in look.of(InputSeen) if i.training and i.grad})} different"
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for calls, seen in _by_call(look):
            judged = judged or len(seen) >= _STEPS
            digest, times = Counter((s.digest, s.shape) for s in seen).most_common(1)[0]
            if times < max(_STEPS, _SAME * len(seen)):
                continue
            same = [s for s in seen if (s.digest, s.shape) == digest]
            for why, at in (
                _of_a_loader(look, same, calls),
                _of_a_tensor(look, same),
                _of_a_seed(look, same),
                _of_a_draw(look, same),
                _of_a_stack(look, same),
            ):
                if why:
                    yield self.blame(
                        at,
                        f"{times} of {count(len(seen), 'training input')} {list(same[0].shape)} were the same; {why}",
                        confirm="print the sum of the input at a few steps",
                        same=times,
                        seen=len(seen),
                    )
                    break
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} inputs of a model were seen")


def _by_call(look: Look) -> Iterator[tuple[int, list[InputSeen]]]:
    """What the first, second, … call of a model in each step was given, and how many calls a step has. Only the first
    whose input is the same again and again, where there is one."""
    for every in training_inputs(look).values():
        calls: dict[int, list[InputSeen]] = defaultdict(list)
        counted: Counter[int] = Counter()
        for seen in every:
            calls[counted[seen.step]].append(seen)
            counted[seen.step] += 1
        yield (
            len(calls),
            max(calls.values(), key=lambda of: Counter((s.digest, s.shape) for s in of).most_common(1)[0][1]),
        )


def _of_a_loader(look: Look, same: list[InputSeen], calls: int) -> tuple[str, Place | None]:
    made = loaders(look).get(same[0].loader) if same[0].loader is not None else None
    if made is None or made.samples is None or made.batch != same[0].shape[0] or made.samples < 2 * calls * made.batch:
        return "", None
    if _on_purpose(same[0].at):
        return "", None
    return (
        f"their loader has {made.samples} samples in batches of {made.batch}",
        read_at(look, made.loader) or same[0].at,
    )


def _on_purpose(at: Place | None) -> bool:
    """Whether the program speaks of one batch that is to be overfitted."""
    return at is not None and any(_PURPOSE.search(line.lower()) for line in source(at.file).lines)


def _of_a_tensor(look: Look, same: list[InputSeen]) -> tuple[str, Place | None]:
    rows, origin = same[0].rows, same[0].origin
    others = {s.digest: s.shape[0] for s in look.of(InputSeen) if s.origin == origin and s.digest != same[0].digest}
    used = same[0].shape[0] + sum(others.values())
    anew = len({s.tensor for s in same}) >= _SAME * len(same)
    one = len({s.origin for s in same}) == 1
    at = same[0].at
    if rows is None or rows < 2 * used or not anew or not one or at is None or _of_a_part(at):
        return "", None
    return f"they are {same[0].shape[0]} rows, cut out again each time, of a tensor with {rows}", assigned_above(at)


def _of_a_part(at: Place) -> bool:
    """Whether a line slices up to a number that its name calls that of a part of the data: ``x[:n_train]``."""
    lines = (at, assigned_above(at))
    statements = [s for place in lines if (s := source(place.file).statement_at(place.line)) is not None]
    slices = [n for statement in statements for n in ast.walk(statement) if isinstance(n, ast.Slice)]
    return any(s.upper is not None and _PART.search(ast.unparse(s.upper).lower()) for s in slices)


def _of_a_seed(look: Look, same: list[InputSeen]) -> tuple[str, Place | None]:
    lines = Counter((s.at, s.seed) for s in look.of(Seeded) if s.step > 0)
    anew = len({s.origin for s in same}) >= _SAME * len(same)
    (at, seed), times = lines.most_common(1)[0] if lines else ((None, 0), 0)
    if times < _STEPS or not anew:
        return "", None
    return f"the seed was set to {seed} in each of them", at


def _of_a_draw(look: Look, same: list[InputSeen]) -> tuple[str, Place | None]:
    rows = same[0].shape[0]
    anew = len({s.origin for s in same}) >= _SAME * len(same)
    drawn = [d for d in look.of(Drawn) if anew and d.count == rows and d.of > 1]
    for at in dict.fromkeys(d.at for d in drawn):
        digests = Counter(d.digest for d in drawn if d.at == at)
        times = digests.most_common(1)[0][1]
        if times >= _STEPS and times >= _SAME * digests.total():
            given = at is not None and _is_given(at) and same[0].at is not None
            where = assigned_above(same[0].at) if given and same[0].at is not None else at
            return f"their {rows} rows were drawn {times} times, the same each time", where
    return "", None


def _of_a_stack(look: Look, same: list[InputSeen]) -> tuple[str, Place | None]:
    rows = same[0].shape[0]
    anew = len({s.origin for s in same}) >= _SAME * len(same)
    stacked = [s for s in look.of(Stacked) if anew and s.count == rows and s.of >= 2 * s.used]
    for at in dict.fromkeys(s.at for s in stacked):
        digests = Counter(s.digest for s in stacked if s.at == at)
        times = digests.most_common(1)[0][1]
        if at is not None and times >= _STEPS and times >= _SAME * digests.total() and not _on_purpose(at):
            share = next(s.used / s.of for s in stacked if s.at == at)
            where = chosen_at(at)
            if not _of_a_part(where):
                return f"the same {rows} parts of a tensor, {share:.1%} of it, were stacked {times} times", where
    return "", None


def _is_given(at: Place) -> bool:
    """Whether the generator of a line is an argument of its function: the caller seeds it."""
    read = source(at.file)
    function, statement = read.function_at(at.line), read.statement_at(at.line)
    if function is None or statement is None:
        return False
    arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    named = [
        k.value for n in ast.walk(statement) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "generator"
    ]
    return any(isinstance(value, ast.Name) and value.id in arguments for value in named)
