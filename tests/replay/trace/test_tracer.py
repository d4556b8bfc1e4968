"""The tracing engine by itself: attached to plain training code, no TrainStep in sight."""

from __future__ import annotations

import linecache
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.trace.origins import origins  # noqa: E402
from postmortem.replay.trace.tracer import Tracer  # noqa: E402

pytestmark = pytest.mark.torch


def _only_origin(trace: Any, *tensors: Any) -> Any:
    found = origins(trace.log, [trace.source(t) for t in tensors])
    assert len(found) == 1
    return found[0].hit


def test_a_loop_without_a_train_step_can_be_traced() -> None:
    """Armed around anybody's code, the engine names the operator, its module and this file."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    with Tracer() as trace:
        loss = model(torch.zeros(3, 2)).sum() + torch.log(torch.zeros(()))
    hit = _only_origin(trace, loss)
    assert hit.name == "log"
    assert hit.where.file == __file__
    assert hit.where.owner == 0


def test_a_backward_operator_is_given_its_forward_place() -> None:
    """NaN in a gradient is led back to the forward operator whose derivative made it."""
    x = torch.zeros(3, requires_grad=True)
    with Tracer() as trace:
        y = x * 2
        root = y.sqrt()  # line of the culprit
        (root * 0).sum().backward()
    hit = _only_origin(trace, x.grad)
    assert (hit.backward, hit.forward_name) == (True, "sqrt")
    assert "y.sqrt()" in linecache.getline(hit.where.file, hit.where.line)


def test_a_closure_of_an_optimizer_is_no_part_of_its_step() -> None:
    """LBFGS and Lightning run forward and backward inside `optimizer.step(closure)`: a fault there is the model's."""
    x = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([x], lr=0.1)

    def closure() -> Any:
        loss = (x.sqrt() * 0).sum()
        loss.backward()
        return loss

    with Tracer(within="others") as trace:
        optimizer.step(closure)
    hit = _only_origin(trace, x.grad)
    assert (hit.backward, hit.forward_name, hit.stage) == (True, "sqrt", "step")
    with Tracer(within="optimizers") as inside:
        optimizer.step(closure)
    assert {h.stage for h in inside.log.hits.values()} == {"optimizer"}


def test_what_was_recorded_can_leave_the_process() -> None:
    """The log and the places in it are plain data: they come through a pickle as they are."""
    with Tracer() as trace:
        bad = torch.nn.Softplus()(torch.zeros(2) / 0)
    log = pickle.loads(pickle.dumps(trace.log))
    assert log == trace.log
    assert [b.hit.where.function for b in origins(log, [trace.source(bad)])] == [
        "test_what_was_recorded_can_leave_the_process"
    ]


def test_what_does_not_lead_to_the_tensor_is_harmless() -> None:
    """A NaN that was replaced, and one that nobody used, are not among the origins."""
    with Tracer() as trace:
        unused = torch.zeros(2) / 0
        kept = torch.nan_to_num(torch.log(torch.tensor([-1.0, 1.0])))
        bad = kept / torch.zeros(2)
    assert bool(unused.isnan().all())
    assert _only_origin(trace, bad).name == "div"


def test_partial_writes_do_not_hide_what_was_there() -> None:
    """A finite value written into a part of a tensor leaves the earlier NaN in the rest on record."""
    with Tracer() as trace:
        x = torch.log(-torch.ones(3))
        x[0] = 1.0
        y = x + 1
    assert _only_origin(trace, y).name == "log"


def test_a_sum_that_overflows_is_no_fault() -> None:
    """Finite numbers whose sum is not are looked at exactly and let go."""
    with Tracer() as trace:
        torch.full((4,), 3e38) * 1.0
    assert trace.log.hits == {}


def test_values_are_followed_through_python_floats() -> None:
    """A number read by item() and used again is led back to the tensor it came from."""
    with Tracer() as trace:
        scale = (torch.ones(()) / torch.zeros(())).item()
        y = torch.zeros(2) * scale
    assert _only_origin(trace, y).name == "div"


def test_deferred_flags_find_the_same_operators() -> None:
    """Sums that are read once at the end point to the same operators as sums read at once."""

    def work() -> None:
        x = torch.tensor([0.0, 1.0])
        (x.log() * x + torch.full((2,), 3e38).square()).tanh()

    with Tracer() as at_once:
        work()
    with Tracer(deferred=True) as later:
        work()
    assert at_once.suspects
    assert set(at_once.suspects) <= set(later.suspects)
    with Tracer(detail=set(later.suspects)) as exact:
        work()
    assert exact.log.hits.keys() == at_once.log.hits.keys()


def test_repairing_an_operator_replaces_its_output() -> None:
    """An armed repair mends the output of that operator and of no other."""

    def work() -> Any:
        return torch.log(torch.zeros(2)) + 1

    with Tracer() as trace:
        work()
    index = min(trace.log.hits)
    with Tracer(repair={index: lambda t: t.fill_(5.0)}, look=False):
        y = work()
    assert y.tolist() == [6.0, 6.0]


def test_disarming_leaves_no_hooks_behind() -> None:
    """Global module hooks are gone after the step, also where the step raised."""
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    before = dict(hooks)
    with pytest.raises(ZeroDivisionError), Tracer():
        _ = 1 / 0
    assert dict(hooks) == before


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unusual_tensors_are_looked_at_as_well() -> None:
    """Nested, sparse, complex and 8-bit tensors neither stop the engine nor hide what is in them."""
    with Tracer() as trace:
        torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged) / 0
        torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]) * float("inf")
        torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (3,)) * float("inf")
        torch.polar(torch.ones(2), torch.ones(2)) / 0
        torch.full((2,), 1e9).to(torch.float8_e5m2)
        torch.empty(3, device="meta") / 0
    assert [h.name for h in trace.log.hits.values()] == ["div", "mul", "mul", "div", "_to_copy"]


def test_inside_or_outside_the_optimizer() -> None:
    """What is not looked at is counted all the same, as repairs need."""
    counts = []
    for within, found in (("all", ["div", "add_", "add_"]), ("others", ["div"]), ("optimizers", ["add_", "add_"])):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"), foreach=False)
        with Tracer(within=within) as trace:
            torch.ones(2) / 0
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        counts.append(trace.count)
        assert [h.name for h in trace.log.hits.values()] == found
    assert counts[0] == counts[1] == counts[2]
