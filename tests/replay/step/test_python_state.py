"""What a step keeps outside model and optimizer is put back before every rerun: generators of its own, counters,
closures."""

from __future__ import annotations

import functools
import random
from collections import Counter, OrderedDict, defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from postmortem.core.culprit import Culprit  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.trace.user_code import installed  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

_MASKED = np.ma.masked
_SHARED = np.random.default_rng(5)  # as a training script has one


def _ask(step: Any, model: nn.Module | None = None, **fields: Any) -> Culprit:
    torch.manual_seed(0)
    model = model or nn.Linear(3, 2)
    fields = fields or {"batch": torch.randn(4, 3)}
    return localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, **fields))


@pytest.mark.parametrize("kind", ["torch", "numpy", "legacy numpy", "python"])
def test_generators_that_a_model_holds(kind: str) -> None:
    """A fault that hangs on what the model's own generator draws comes back in every rerun, and no repair that leaves
    the draw alone is said to cure it."""
    make: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.Generator().manual_seed(5),
        "numpy": lambda: np.random.default_rng(5),
        "legacy numpy": lambda: np.random.RandomState(5),
        "python": lambda: random.Random(5),
    }

    def drawn(g: Any) -> float:
        return float(torch.rand((), generator=g)) if isinstance(g, torch.Generator) else g.random()

    model = nn.Linear(3, 2)
    model.noise = make[kind]()
    first = drawn(make[kind]())

    def step(m: Any, b: Any) -> Any:
        return (m(b) / (drawn(m.noise) - first)).mean()

    culprit = _ask(step, model)
    assert (culprit.phase, culprit.op, culprit.established) == ("forward", "div", "cured")
    assert {f.name for f in culprit.fixes if f.cured} == {"eps"}
    assert drawn(model.noise) == first


def test_a_generator_of_the_script() -> None:
    """A generator that lies in the module of the step is put back, too, and left as it was."""
    before = _SHARED.bit_generator.state
    first = np.random.default_rng(5).random()
    culprit = _ask(lambda m, b: (m(b) / (_SHARED.random() - first)).mean())
    assert (culprit.phase, culprit.op) == ("forward", "div")
    assert _SHARED.bit_generator.state == before


def test_what_a_closure_counts() -> None:
    """A fault at the third call of a step that counts its calls is found, and the count is as before."""
    seen = {"n": 0}

    def step(m: Any, b: Any) -> Any:
        seen["n"] += 1
        return m(b).mean() / torch.tensor(3.0 - seen["n"])

    culprit = _ask(step, batches=[torch.randn(4, 3) for _ in range(5)])
    assert (culprit.phase, culprit.op, culprit.step) == ("forward", "div", 2)
    assert seen == {"n": 0}


def test_a_number_of_the_enclosing_function() -> None:
    """The same with a nonlocal number."""

    def build() -> Any:
        left = 3.0

        def step(m: Any, b: Any) -> Any:
            nonlocal left
            left -= 1.0
            return m(b).mean() / torch.tensor(left)

        return step

    culprit = _ask(build(), batches=[torch.randn(4, 3) for _ in range(5)])
    assert (culprit.phase, culprit.op, culprit.step) == ("forward", "div", 2)


class Trainer:
    """A training loop's object: the step is its method; where `loads` it gives the batches as well."""

    def __init__(self) -> None:
        self.temperature, self.taken = 2.0, 0

    def loss(self, m: Any, b: Any) -> Any:
        self.temperature -= 1.0
        return (m(b) / torch.tensor(self.temperature)).mean()

    def batches(self, step: int) -> Any:
        self.taken += 1
        return torch.full((4, 3), float(self.taken))

    def stream(self) -> Any:
        while True:
            yield self.batches(0)


_COUNT, _HISTORY, _MEAN = 0, [1.0], np.zeros(3, np.float32)  # as a training script has them


def test_what_is_global_in_a_script() -> None:
    """A counter, a list and an array of the script that the step changes are as before in every rerun: repairs are seen
    to cure."""

    def step(m: Any, b: Any) -> Any:
        global _COUNT
        _COUNT += 1
        _MEAN[:] += 1 + b.mean(0).numpy()
        out = (m(b) / b.abs().sum(1, keepdim=True)).mean() * float(_MEAN.max()) * _COUNT
        _HISTORY.append(out.item())
        return out / abs(np.mean(_HISTORY))

    batch = torch.randn(4, 3)
    batch[2] = 0
    culprit = _ask(step, batch=batch)
    assert (culprit.op, culprit.samples) == ("div", (2,))
    assert {f.name for f in culprit.fixes if f.cured} == {"eps", "drop_sample"}
    assert (_COUNT, _HISTORY, _MEAN.tolist()) == (0, [1.0], [0.0] * 3)


def test_tensors_that_train_in_a_list() -> None:
    """Weights that a closure holds in a list are the same objects afterwards, with their values, and still train."""
    weights = [torch.randn(3, 2, requires_grad=True), torch.randn(2, 1, requires_grad=True)]
    before, objects = [w.detach().clone() for w in weights], list(weights)

    def step(m: Any, b: Any) -> Any:
        return (m(b) @ weights[1] + b @ weights[0] @ weights[1] / b.abs().sum(1, keepdim=True)).mean()

    batch = torch.randn(4, 3)
    batch[2] = 0
    model = nn.Linear(3, 2)
    culprit = localize(TrainStep(model, torch.optim.SGD([*model.parameters(), *weights], lr=0.01), step, batch=batch))
    assert (culprit.op, culprit.samples) == ("div", (2,))
    assert all(a is b and a.requires_grad for a, b in zip(weights, objects, strict=True))
    assert all(map(torch.equal, weights, before))


def test_the_object_of_a_method() -> None:
    """What the object of the step's method counts is put back."""
    trainer = Trainer()
    culprit = _ask(trainer.loss, batches=[torch.randn(4, 3) for _ in range(5)])
    assert (culprit.phase, culprit.op, culprit.step) == ("forward", "div", 1)
    assert trainer.temperature == 2.0


@pytest.mark.parametrize("stream", [False, True], ids=["function", "generator"])
def test_an_object_with_the_step_and_the_batches(stream: bool) -> None:
    """Of an object that gives the batches as well, what the step counts is put back and what drawing counts is not."""
    trainer = Trainer()
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    batches = trainer.stream() if stream else trainer.batches
    culprit = localize(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), trainer.loss, batches=batches), step=4
    )
    assert (culprit.op, culprit.step) == ("div", 1)
    assert (trainer.temperature, trainer.taken) == (2.0, 2)


class Criterion:
    """A loss with a state of its own, handed over as an object that can be called."""

    def __init__(self) -> None:
        self.left = [2.0]

    def __call__(self, m: Any, b: Any) -> Any:
        self.left[0] -= 1.0
        return m(b).mean() / torch.tensor(self.left[0])


def test_a_step_that_is_an_object() -> None:
    """An object that can be called is a step like another, also behind functools.partial."""
    for criterion in (Criterion(), functools.partial(Criterion())):
        culprit = _ask(criterion, batches=[torch.randn(4, 3) for _ in range(5)])
        assert (culprit.phase, culprit.op, culprit.step) == ("forward", "div", 1)


def test_what_gives_the_batches_is_left_alone() -> None:
    """An object that counts the batches it gave is asked for each once, and not set back."""
    trainer = Trainer()
    train_step = TrainStep(
        model := nn.Linear(3, 2),
        torch.optim.SGD(model.parameters(), lr=0.01),
        lambda m, b: (m(b) / (b[0, 0] - 3)).mean(),
    )
    train_step.batches = trainer.batches
    culprit = localize(train_step, step=4)
    assert (culprit.step, culprit.op, trainer.taken) == (2, "div", 3)


def test_a_teacher_that_the_step_updates() -> None:
    """A model that the step holds beside its own is put back, is named by its variable, and follows into double
    precision."""

    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 2)
            self.register_buffer("left", torch.tensor(2.0))

        def forward(self, x: Any) -> Any:
            return self.net(x) / self.left

    torch.manual_seed(0)
    teacher = Teacher()
    before = [t.clone() for t in teacher.state_dict().values()]

    def step(m: Any, b: Any) -> Any:
        with torch.no_grad():
            target = teacher(b)
            teacher.left -= 1
            teacher.net.weight.lerp_(m.weight, 0.1)
        return ((m(b) - target) ** 2).mean()

    culprit = _ask(step, batches=[torch.randn(4, 3) for _ in range(5)])
    assert (culprit.phase, culprit.module, culprit.op, culprit.step) == ("forward", "teacher", "div", 2)
    assert culprit.precision_only is False
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.state_dict().values(), strict=True))


@torch.compile(backend="eager")
def _scaled(z: Any, w: Any) -> Any:
    return z / w[:, None]


def test_a_compiled_function() -> None:
    """A compiled function that the step calls runs eagerly while it is looked at, and its line is named."""
    w = torch.tensor([1.0, 2.0, 0.0, 1.0])
    culprit = _ask(lambda m, b: _scaled(m(b["x"]), b["w"]).mean(), batch={"x": torch.randn(4, 3), "w": w})
    assert (culprit.op, culprit.code, culprit.samples) == ("div", "return z / w[:, None]", (2,))
    assert any("compiled" in line for line in culprit.how)


def test_arrays_that_cannot_be_copied() -> None:
    """A masked constant among what is global in the user's file is left alone: it refuses to be copied."""
    culprit = _ask(lambda m, b: (m(b) + (1 if _MASKED is np.ma.masked else 0)).mean())
    assert culprit.phase == "none"


@pytest.mark.parametrize("held", [list, lambda handles: {"out": handles[0]}], ids=["list", "dict"])
def test_handles_of_hooks_that_a_module_keeps(held: Callable[[list[Any]], Any]) -> None:
    """``self._hooks = [layer.register_forward_hook(...)]`` is an attribute of the user's, no table of hooks."""

    def step(m: Any, b: Any) -> Any:
        return (m(b["x"]) / b["d"]).sum()

    model = nn.Linear(2, 1)
    model._hooks = held([model.register_forward_hook(lambda module, args, output: output)])
    batch = {"x": torch.ones(3, 2), "d": torch.tensor([[1.0], [0.0], [1.0]])}
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, batch))
    assert (found.op, found.samples) == ("div", (1,))


@pytest.mark.parametrize("place", ["lib/python3.11/site-packages", "usr/lib/python3/dist-packages"])
def test_packages_outside_this_environment(tmp_path: Path, place: str) -> None:
    """What lies among the packages of another environment, or of the user's site, is installed, not a file of the
    user."""
    for folder, theirs in ((tmp_path / place, True), (tmp_path / "project", False)):
        assert installed("thing", SimpleNamespace(__file__=str(folder / "thing.py"))) is theirs


def test_a_generator_of_the_operating_system() -> None:
    """``random.SystemRandom`` has no state to put back: a step that holds one is run all the same."""
    system = random.SystemRandom()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)

    def step(m: Any, b: Any) -> Any:
        return (m(b["x"]) * (1 + system.random()) / b["d"]).sum()

    batch = {"x": torch.ones(3, 2), "d": torch.tensor([[1.0], [0.0], [1.0]])}
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, batch))
    assert (found.op, found.samples) == ("div", (1,))
    assert any("not deterministic" in line for line in found.how)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these layouts prototypes
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.eye(4).to_sparse_csc(),
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["coo", "csr", "csc", "meta", "nested"],
)
def test_a_graph_that_the_step_keeps(make: Any) -> None:
    """Tensors that torch cannot compare as they are, such as a sparse adjacency, do not end the replay when a batch is
    drawn."""
    kept = make()

    def step(model: Any, x: Any) -> Any:
        assert kept.dtype == torch.float32
        return model(x).log().mean()

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    train_step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), step, batches=lambda _: -torch.ones(4, 4), first_step=0
    )
    assert localize(train_step, step=2).op == "log"


@pytest.mark.parametrize(
    "kind",
    [dict, Counter, OrderedDict, functools.partial(defaultdict, int)],
    ids=["dict", "Counter", "OrderedDict", "defaultdict"],
)
def test_every_kind_of_dict_is_put_back(kind: Any) -> None:
    """What a step counts in a Counter, an OrderedDict or a defaultdict is afterwards what it was before."""
    counts = kind({"before": 5})
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)

    def step(m: Any, b: Any) -> Any:
        counts["runs"] = counts.get("runs", 0) + 1
        return (m(b["x"]) / b["d"]).sum() / (counts["runs"] == 1)  # a second run in a row would fail in another way

    batch = {"x": torch.ones(3, 2), "d": torch.tensor([[1.0], [0.0], [1.0]])}
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, batch))
    assert dict(counts) == {"before": 5}
    assert (found.op, found.samples) == ("div", (1,))
