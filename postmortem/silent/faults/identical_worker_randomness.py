from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import data_changes
from postmortem.silent.facts import WorkerDrew
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look


@fault
class IdenticalWorkerRandomness(BaseFault):
    """The workers of a DataLoader start with the same state of a random generator, so they draw the same augmentations.

    How it is found: two workers have the same generator state after their first batch and again after their second, and
    the state changed in between: both drew the same numbers.

    Not blamed: generators that the workers do not use; different seeds.

    What to do: draw from torch's or NumPy's global generator, which PyTorch seeds differently in each worker, or create
    the generator in `worker_init_fn` from `torch.initial_seed()`.

    How to confirm: return the random number with the sample, and print it for the first batches.
    """

    code = "TRN044"
    name = "identical-worker-randomness"
    family = "data"
    checks = "the workers of a loader draw different random numbers"
    trial = Trial("the generators of the dataset seeded in each worker", data_changes.seeded_workers, by="fault")

    def blames(self, look: Look) -> Iterator[Blame]:
        drew: dict[tuple[int, int, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
        stacks = {}
        workers = set()
        for fact in look.of(WorkerDrew):
            workers.add((fact.dataset, fact.worker))
            stacks[fact.dataset] = fact.stack
            for name, state in fact.states.items():
                drew[fact.dataset, fact.seed - fact.worker, name][fact.worker].setdefault(fact.batch, state)
        if len(workers) < 2:
            raise NotChecked("no loader with two or more workers was seen")
        for (dataset, _, name), states in drew.items():
            used = [(s[1], s[2]) for s in states.values() if len(s) == 2 and s[1] != s[2]]
            if len(used) > 1 and len(set(used)) == 1:
                yield self.blame(
                    stacks[dataset],
                    f"{count(len(used), 'worker')} had the same state of the generator {name} after their first and "
                    "after their second batch: they draw the same random numbers",
                    confirm="return the random number with the sample, and print it for the first batches",
                    generator=name,
                    workers=len(used),
                )
