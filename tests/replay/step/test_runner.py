"""One step, run as its TrainStep says, and everything it changes put back."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.roll.level import far_from, leaps, leaves_level  # noqa: E402
from postmortem.replay.roll.roll import roll, survives  # noqa: E402
from postmortem.replay.step.errors import BatchError, StopAt  # noqa: E402
from postmortem.replay.step.overrides import Overrides  # noqa: E402
from postmortem.replay.step.process_state import preserved  # noqa: E402
from postmortem.replay.step.runner import StepRunner  # noqa: E402
from postmortem.replay.trace.tensors import nonfinite_names, total_norm  # noqa: E402

nn = torch.nn


class Counting(nn.Module):
    """Changes buffers, plain attributes and a list in its forward pass, and draws from every generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.history: list[float] = []
        self.average = torch.zeros(3)

    def forward(self, x: Any) -> Any:
        self.seen = self.seen + 1  # replaced, not written to
        self.calls += 1
        h = self.norm(self.drop(self.linear(x))) + random.random() + np.random.rand()
        self.average.lerp_(h.detach().mean(0), 0.1)
        self.history.append(float(h.detach().mean()))
        return h


def loss_of(model: Any, x: Any) -> Any:
    x.mul_(1.5)  # a step that writes into its batch
    return (model(x) ** 2).mean()


def make(**options: Any) -> StepRunner:
    torch.manual_seed(0)
    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options.setdefault("scheduler", torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=50))
    return StepRunner(TrainStep(model, optimizer, loss_of, batches=lambda step: torch.randn(6, 4), clip=1.0, **options))


def everything(runner: StepRunner) -> list[Any]:
    model = runner.models[""]
    optimizer = runner.optimizers[""]
    state = [v.clone() for s in optimizer.state.values() for v in s.values()]
    tensors = [t.clone() for t in (*model.parameters(), *model.buffers(), model.average)]
    plain = [
        model.calls,
        list(model.history),
        optimizer.param_groups[0]["lr"],
        runner.schedulers[0].last_epoch,
        torch.get_rng_state().tolist(),
    ]
    return [
        *(t.tolist() for t in (*tensors, *state)),
        *plain,
        None if runner.scaler is None else runner.scaler.state_dict(),
    ]


@pytest.mark.parametrize("scaler", [False, True])
def test_a_step_can_be_run_again_bit_for_bit(scaler: bool) -> None:
    """Restoring a snapshot puts back parameters, buffers, plain attributes, optimizer, scheduler, scaler and
    generators."""
    runner = make(scaler=scaler)
    runner.run(runner.draw(0), 0)
    batch = runner.draw(1)
    parameters = list(runner.models[""].parameters())
    storages = [p.data_ptr() for p in parameters]
    before, state = runner.snapshot(), everything(runner)
    first = runner.run(batch, 1)
    after = everything(runner)
    assert after != state
    runner.restore(before)
    assert everything(runner) == state
    assert runner.run(batch, 1) == first
    assert everything(runner) == after
    runner.restore(before)
    assert [p.data_ptr() for p in runner.models[""].parameters()] == storages
    assert all(a is b for a, b in zip(runner.models[""].parameters(), parameters, strict=True))


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(dtype="fp64"),
        Overrides(dtype="bf16"),
        Overrides(lr=0.01),
        Overrides(clip=0.1),
        Overrides(loss_scale=1.0),
        Overrides(eps=1e-3, fresh_optimizer=True),
        Overrides(batch=lambda x: x[:3]),
    ],
    ids=["fp64", "bf16", "lr", "clip", "loss_scale", "eps", "batch"],
)
def test_overrides_leave_nothing_behind(overrides: Overrides) -> None:
    """A step under overrides gives another result; after a restore the plain step gives the same bits as before."""
    runner = make(scaler=True)
    runner.run(runner.draw(0), 0)
    batch = runner.draw(1)
    before = runner.snapshot()
    plain = runner.run(batch, 1)
    weights = [p.tolist() for p in runner.models[""].parameters()]
    runner.restore(before)
    changed = runner.run(batch, 1, overrides=overrides)
    assert [p.tolist() for p in runner.models[""].parameters()] != weights or changed != plain
    runner.restore(before)
    assert runner.run(batch, 1) == plain
    assert [p.tolist() for p in runner.models[""].parameters()] == weights
    assert torch.get_default_dtype() == torch.float32


def test_snapshot_into_the_same_memory() -> None:
    """A snapshot taken into an older one holds the newer state."""
    runner = make()
    state = runner.snapshot()
    runner.run(runner.draw(0), 0)
    newer = everything(runner)
    assert runner.snapshot(into=state) is state
    runner.run(runner.draw(1), 1)
    runner.restore(state)
    assert everything(runner) == newer


def test_attributes_that_come_during_a_step_go_with_it() -> None:
    """What a step adds to a module is gone after a restore; what it only makes plain, as a number in place of an
    object, is not."""
    runner = make()
    runner.models[""].last = object()
    before = runner.snapshot()
    vars(runner.models[""]).update(last=0.5, added=1)
    runner.restore(before)
    assert "last" in vars(runner.models[""])
    assert "added" not in vars(runner.models[""])


def test_batches_are_asked_for_once_in_order() -> None:
    """Each step's batch is asked for once; asked again, the kept one comes with the random state from after its
    draw."""
    asked: list[int] = []

    def batches(step: int) -> Any:
        asked.append(step)
        return torch.randn(2, 4)

    runner = StepRunner(TrainStep(nn.Linear(4, 1), torch.optim.SGD([torch.zeros(1)]), loss_of, batches=batches))
    first = runner.draw(3)
    state = torch.get_rng_state()
    runner.draw(4)
    assert runner.draw(3) is first
    assert torch.equal(torch.get_rng_state(), state)
    assert asked == [3, 4]


def test_batches_that_end() -> None:
    """An iterable that ends early says at which step."""
    runner = StepRunner(TrainStep(nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]), loss_of, batches=iter([1])))
    runner.draw(10)
    with pytest.raises(ReplayError, match="end before step 11: 1 were given"):
        runner.draw(11)


def test_order_of_a_step() -> None:
    """before_step comes before the batch, the scheduler after the optimizer, and a rate set by hand is used."""
    said: list[str] = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def before(step: int) -> None:
        said.append(f"before {step}")
        optimizer.param_groups[0]["lr"] = 0.5

    def batches(step: int) -> Any:
        said.append(f"batch {step}")
        return torch.ones(2, 2)

    runner = StepRunner(TrainStep(model, optimizer, lambda m, x: m(x).sum(), batches=batches, before_step=before))
    result = runner.run(runner.draw(7), 7)
    assert said == ["before 7", "batch 7"]
    assert result.lr == 0.5


def test_accumulation_is_the_mean_over_micro_batches() -> None:
    """loss / k is run backward for each micro-batch; the step's loss is their sum; another count is refused."""
    model = nn.Linear(2, 1)
    x = torch.randn(6, 2)

    def loss(m: Any, b: Any) -> Any:
        return (m(b) ** 2).mean()

    whole = StepRunner(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, batch=x))
    parts = StepRunner(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, batch=[x[:3], x[3:]], accumulate=2)
    )
    a, b = whole.run(whole.draw(0), 0), parts.run(parts.draw(0), 0)
    assert a.loss == pytest.approx(b.loss)
    assert a.grad_norm == pytest.approx(b.grad_norm)
    assert (a.last, b.last["loss"]) == ({}, pytest.approx(loss(model, x[3:]).item()))
    with pytest.raises(ReplayError, match="list of 2 micro-batches, not 3"):
        parts.run([x, x, x], 0)


def test_several_optimizers() -> None:
    """One step with two optimizers steps both; a dict of steps makes sub-steps, each with its own gradients and
    loss."""
    models = {"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)}

    def optimizers() -> dict[str, Any]:
        return {k: torch.optim.SGD(m.parameters(), lr=0.1) for k, m in models.items()}

    both = StepRunner(
        TrainStep(
            models,
            optimizers(),
            lambda m, x: {"one": m["a"](x).mean(), "two": m["b"](x).mean()},
            batch=torch.ones(3, 2),
        )
    )
    before = [p.clone() for m in models.values() for p in m.parameters()]
    result = both.run(both.draw(0), 0)
    assert sorted(result.losses) == ["one", "two"]
    assert result.loss == pytest.approx(sum(result.losses.values()))
    assert all(
        not torch.equal(p, q) for p, q in zip(before, (p for m in models.values() for p in m.parameters()), strict=True)
    )

    step = {"b": lambda m, x: m["b"](x).mean(), "a": lambda m, x: (m["a"](x) + m["b"](x)).mean()}
    result = StepRunner(TrainStep(models, optimizers(), step, batch=torch.ones(3, 2))).run(torch.ones(3, 2), 0)
    assert list(result.losses) == ["b", "a"]


def test_where_a_step_fails_first() -> None:
    """The first of loss, gradient and parameter that is not finite is named, with the tensors."""

    def result(loss: Any, weight: float = 1.0, lr: float = 0.1) -> Any:
        model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(weight)
        return StepRunner(TrainStep(model, torch.optim.SGD(model.parameters(), lr=lr), loss, batch=torch.ones(1))).run(
            torch.ones(1), 0
        )

    assert result(lambda m, x: m(x).log().sum(), weight=-1.0).first_nonfinite == "loss"
    grad = result(lambda m, x: (m(x) * 0).sqrt().sum())
    assert (grad.first_nonfinite, grad.bad_grads) == ("grad", ["weight"])
    update = result(lambda m, x: m(x).sum() * 1e30, lr=1e30)
    assert (update.first_nonfinite, update.bad_params, update.bad_grads) == ("param", ["weight"], [])
    assert result(lambda m, x: m(x).sum()).first_nonfinite is None


def test_scaler_skips_an_overflow() -> None:
    """A gradient that overflows only by the loss scale is skipped by the scaler, which is said; the parameters are
    kept."""
    model = nn.Linear(1, 1)
    before = model.weight.clone()
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x: m(x).sum() * 4,
        batch=torch.ones(1),
        scaler=True,
        init_scale=2.0**127,
    )
    runner = StepRunner(step)
    result = runner.run(runner.draw(0), 0)
    assert (result.skipped, result.first_nonfinite, result.scale) == (True, "grad", 2.0**127)
    assert torch.equal(model.weight, before)
    assert runner.scaler.get_scale() == 2.0**126


def test_norms_of_unusual_tensors() -> None:
    """Sparse, complex, empty and integer tensors are looked at as well; huge finite values are no overflow."""
    sparse = torch.sparse_coo_tensor([[0]], [float("nan")], (3,), check_invariants=False)
    tensors = {
        "sparse": sparse,
        "complex": torch.tensor([complex(0, float("inf"))]),
        "empty": torch.empty(0),
        "int": torch.ones(2, dtype=torch.long),
        "huge": torch.full((4,), 1e38),
        "half": torch.ones(2, dtype=torch.float16),
    }
    assert nonfinite_names(tensors) == ["sparse", "complex"]
    assert total_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0], dtype=torch.float64)}) == 5.0


def test_roll_stops_at_the_fault() -> None:
    """The roll ends at the first fault, with the state from before it; a source that ends early ends the roll."""
    model = nn.Linear(1, 1)
    values = [1.0, 2.0, float("nan"), 1.0]
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        lambda m, x: m(x).sum(),
        batches=[torch.tensor([v]) for v in values],
    )
    runner = StepRunner(step)
    done = roll(runner, 5, 8)
    assert (done.fault, done.last, done.diverged_at, done.overflow) == (7, 7, None, None)
    runner.restore(done.before)
    assert torch.isfinite(model.weight).all()
    clean = StepRunner(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, x: m(x).sum(), batches=[torch.ones(1)])
    )
    ended = roll(clean, 5, 8)
    assert ended.fault is None
    assert "end before step 6" in (ended.ended or "")


def test_roll_keeps_the_start_of_skipped_steps() -> None:
    """Overflows at the end that no good step follows begin where the first was skipped; ones that were handled do not
    count."""
    model = nn.Linear(1, 1)
    bad = torch.tensor([float("inf")])

    def loss(m: Any, x: Any) -> Any:
        return m(x).sum() if torch.isfinite(x) else (m(torch.ones(1)) * 0).sqrt().sum()

    batches = [torch.ones(1), bad, torch.ones(1), bad, bad, bad]
    runner = StepRunner(
        TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=0.01), loss, batches=batches, scaler=True, init_scale=4.0
        )
    )
    done = roll(runner, 0, 5)
    assert (done.fault, done.overflow, [r.skipped for r in done.results]) == (
        None,
        3,
        [False, True, False, True, True, True],
    )
    runner.restore(done.before)
    assert runner.scaler.get_scale() == 2.0


@pytest.mark.parametrize(
    ("losses", "left"),
    [
        ([3.06, 1.3e4, 1.1e16], 1),
        ([1.0, 1.1, 0.9, 1.0, 20.0, 300.0, 5e4], 4),
        ([1.0, 0.9, 1.1, 1.0, 8.0, 1.0], None),
        ([0.01, 0.5, 0.6, 0.55, 0.5, 0.6], None),
        ([1.0, 1.1, 0.9, 1.0, 50.0], None),
        ([-3.0, -3.1, -2.9, -3.0, -3.2], None),
        ([], None),
    ],
)
def test_leaves_level(losses: list[float], left: int | None) -> None:
    """A loss that grows over steps has left its level from the first such step on; noise and one spike have not."""
    assert leaves_level(losses) == left


@pytest.mark.parametrize(
    ("losses", "at"),
    [
        ([0.4, 9.0, 400.0, 20.0, 1.6, 1.7], 1),
        ([0.4, 9.0, 0.5, 0.4, 0.4], None),
        ([0.4, 1.6, 1.7, 1.6], None),
        ([], None),
    ],
)
def test_leaps(losses: list[float], at: int | None) -> None:
    """A loss that leaps tenfold and stays above twice its level; one spike, or a rise of less, is none."""
    assert leaps(losses) == at


def test_survives_needs_the_level() -> None:
    """A repair of a divergence counts only where all steps from the start stay finite and within ten times the
    level."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=3.0),
        lambda m, x: (m(x) ** 2).mean(),
        batches=[torch.ones(4, 1)] * 200,
    )
    runner = StepRunner(step)
    done = roll(runner, 0, 199)
    assert done.fault is not None
    assert done.diverged_at is not None
    assert survives(runner, done, Overrides(lr=0.01))
    assert not survives(runner, done)
    assert not survives(runner, done, Overrides(dtype="fp64"))


def meddle(model: Any) -> None:
    with preserved([model]):
        torch.manual_seed(9)
        torch.set_grad_enabled(False)
        torch.autograd.set_detect_anomaly(True)
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        model.register_forward_hook(lambda *_: None)
        warnings.simplefilter("ignore")
        raise ZeroDivisionError


def test_preserved_puts_the_process_back() -> None:
    """Generators, modes, flags, dtype, threads, hooks and warnings are as before, also after an exception."""
    model = nn.Linear(1, 1)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    threads, filters = torch.get_num_threads(), list(warnings.filters)
    with pytest.raises(ZeroDivisionError):
        meddle(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads
    assert not model._forward_hooks
    assert list(warnings.filters) == filters


def test_an_optimizer_that_asks_for_a_closure() -> None:
    """LBFGS evaluates the loss several times in a step: the same as in the user's own loop, and traced like any
    other."""
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=4) for m in models]

    def closure() -> Any:
        optimizers[0].zero_grad()
        loss = ((models[0](x) - y) ** 2).mean()
        loss.backward()
        return loss

    optimizers[0].step(closure)
    runner = StepRunner(TrainStep(models[1], optimizers[1], lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(), (x, y)))
    assert runner.run((x, y), 0).first_nonfinite is None
    assert torch.equal(models[0].weight, models[1].weight)


def test_an_observer_ends_the_step() -> None:
    """It sees losses and gradients; what it raises comes through code that catches every Exception."""
    seen = []

    def loss_of_a_careful_user(model: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return model(x).sum()
        except Exception:  # noqa: BLE001
            return torch.zeros(())

    def stop(kind: str, tensors: dict[str, torch.Tensor]) -> None:
        seen.append((kind, sorted(tensors)))
        if kind == "grad":
            raise StopAt("grad")

    model = torch.nn.Linear(4, 2)
    runner = StepRunner(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of_a_careful_user, torch.ones(3, 4))
    )
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(StopAt) as stopped, runner.observing(stop):
        runner.run(runner.draw(0), 0)
    assert stopped.value.stage == "grad"
    assert seen == [("loss", ["loss"]), ("grad", ["bias", "weight"])]
    assert all(map(torch.equal, before, model.parameters()))
    assert runner.run(runner.draw(0), 0).first_nonfinite is None
    assert len(seen) == 2


@pytest.mark.parametrize("where", ["batches", "before_step"])
def test_an_error_while_a_batch_is_drawn_names_the_step(where: str) -> None:
    """BatchError says at which step, and has what the user's code raised as its cause."""

    def broken(step: int) -> torch.Tensor:
        if step == 1:
            raise KeyError("no such shard")
        return torch.ones(3, 4)

    model = torch.nn.Linear(4, 2)
    given = {"batches": lambda step: torch.ones(3, 4), where: broken}
    runner = StepRunner(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).sum(), **given))
    runner.draw(0)
    with pytest.raises(BatchError) as failed:
        runner.draw(1)
    assert failed.value.step == 1
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("before", "loss", "wanted"),
    [
        ([0.13] * 8, 8.7e9, 0.13),
        ([0.1, 30.0, 0.2, 0.1], -3.0, 0.15),  # a single high one sets no course
        ([2.0, 1.0, 0.5], 4.0, None),
        ([1.0, 1e3, 1e6], 2e6, None),  # it grew before
        ([], 1e9, None),
        ([0.0, 0.0], 1.0, None),
        ([float("nan"), 1.0], 20.0, 1.0),
    ],
)
def test_a_loss_far_from_its_course(before: list[float], loss: float, wanted: float | None) -> None:
    """More than ten times as large as those of the steps before."""
    assert far_from(before, loss) == (None if wanted is None else pytest.approx(wanted))
