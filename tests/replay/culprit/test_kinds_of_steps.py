"""`localize` on many kinds of steps, a few lines each: place, samples, cures and suggested lines."""

from __future__ import annotations

import ast
import dis
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from postmortem.core.culprit import Culprit  # noqa: E402
from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.fixes.eps import AtLine  # noqa: E402
from postmortem.replay.fixes.source_edit import Guard, suggested_line  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.rerun.samples import Samples  # noqa: E402
from postmortem.replay.trace.places import span_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def _rows(n: int = 6, width: int = 4) -> Any:
    torch.manual_seed(1)
    return torch.randn(n, width)


def _ask(
    step: Callable[[Any, Any], Any], batch: Any, model: Any = None, optimizer: Any = None, **fields: Any
) -> Culprit:
    torch.manual_seed(0)
    model = model or nn.Linear(4, 4, bias=False)
    return localize(TrainStep(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.01), step, batch, **fields))


def _cured(culprit: Culprit) -> set[str]:
    return {f.name for f in culprit.fixes if f.cured}


@pytest.mark.parametrize("scaler", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_every_implementation_of_an_optimizer_with_eps_zero(kind: Any, options: dict[str, bool], scaler: bool) -> None:
    """0 / 0 in the update is found in single-tensor, foreach and fused optimizers, with a GradScaler or without; a
    larger eps cures it."""
    model = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1))
    optimizer = kind(model.parameters(), lr=1e-3, eps=0.0, **options)
    supports_scaling = getattr(optimizer, "_step_supports_amp_scaling", None)
    culprit = _ask(
        lambda m, b: m(b["i"]).mean(), {"i": torch.tensor([0, 1, 2])}, model, optimizer, scaler=scaler, init_scale=8.0
    )
    assert (culprit.phase, culprit.module, culprit.op, culprit.param) == ("optimizer", "0", "addcdiv", "0.weight")
    assert culprit.established == "cured"
    assert _cured(culprit) == {"eps"}
    assert optimizer.param_groups[0].get("fused") == options.get("fused")
    assert getattr(optimizer, "_step_supports_amp_scaling", None) == supports_scaling


def test_an_optimizer_that_calls_its_base_class() -> None:
    """Code after super().step() still belongs to the optimizer, with the user's line."""

    class Projected(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.div_((p - p).norm())

    model = nn.Linear(4, 1)
    culprit = _ask(lambda m, b: m(b["x"]).mean(), {"x": _rows()}, model, Projected(model.parameters(), lr=0.1))
    assert (culprit.phase, culprit.op, Path(culprit.file or "").name) == ("optimizer", "div", Path(__file__).name)


def test_inf_in_the_data_before_a_batch_norm() -> None:
    """Running statistics that batch norm spoils in the same step are not mistaken for a bad state."""
    x = _rows()
    x[2, 1] = float("inf")
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    culprit = _ask(lambda m, b: m(b["x"]).pow(2).mean(), {"x": x}, model)
    assert (culprit.phase, culprit.samples) == ("data", (2,))
    assert _cured(culprit) == {"drop_sample", "sanitize_input"}


@pytest.mark.parametrize(("largest", "changed"), [(9e3, False), (2e4, True)])
def test_inputs_are_cleaned_where_that_changes_something(largest: float, changed: bool) -> None:
    """A batch within ±1e4 is not run again for it, and the answer says so; one beyond is."""
    x = _rows()
    x[0, 0] = largest
    x[2] = 0.0
    culprit = _ask(lambda m, b: (m(b["x"]).square().sum(1).sqrt() + m(b["x"]).sum(1)).mean(), {"x": x})
    assert (culprit.phase, culprit.op, culprit.samples) == ("backward", "sqrt", (2,))
    said = {f.name: (f.cured, f.how.endswith("changes nothing in this batch")) for f in culprit.fixes}["sanitize_input"]
    assert said == (False, not changed)


def test_bad_values_that_all_samples_share() -> None:
    """A NaN among the class weights is a fault of the data, but of no sample."""
    weights = torch.tensor([1.0, float("nan"), 1.0])
    batch = {"x": _rows(), "y": torch.arange(6) % 3, "w": weights}
    culprit = _ask(
        lambda m, b: nn.functional.cross_entropy(m(b["x"])[:, :3], b["y"], weight=b["w"]), batch, shared=("w",)
    )
    assert (culprit.phase, culprit.samples) == ("data", None)


def test_values_that_travel_through_numpy() -> None:
    """A tensor that goes to numpy and comes back is followed to the division that spoiled it."""

    def step(m: Any, b: Any) -> Any:
        share = b["w"] / b["w"].sum(-1, keepdim=True)
        return (m(b["x"]).mean(-1) * torch.from_numpy(share.numpy().mean(-1))).mean()

    w = torch.ones(6, 3)
    w[4] = 0
    culprit = _ask(step, {"x": _rows(), "w": w})
    assert (culprit.phase, culprit.op, culprit.samples) == ("forward", "div", (4,))


def test_two_faults_in_one_step() -> None:
    """Where only both repairs together cure, the first is named and the samples of both are."""

    def step(m: Any, b: Any) -> Any:
        return (m(b["x"]).mean(-1) / b["w"]).mean() + torch.log(b["v"]).mean()

    w, v = torch.ones(6), torch.ones(6)
    w[3], v[1] = 0, -1
    culprit = _ask(step, {"x": _rows(), "w": w, "v": v})
    assert (culprit.op, culprit.samples) == ("div", (1, 3))
    assert any("only with all of them masked" in line for line in culprit.how)


def test_a_pole_that_where_hides_is_blamed_on_its_derivative() -> None:
    """1 / 0 in the branch that where() drops is harmless until the backward pass multiplies it by zero."""

    def step(m: Any, b: Any) -> Any:
        s = m(b["x"]).sum(-1)
        return torch.where(s != 0, 1 / s, torch.zeros_like(s)).abs().clamp(max=5).mean()

    x = _rows()
    x[4] = 0
    culprit = _ask(step, {"x": x})
    assert (culprit.phase, culprit.op, culprit.samples) == ("backward", "reciprocal", (4,))


def test_nested_reentrant_checkpoints() -> None:
    """Inside two reentrant checkpoints the module and the line of the failing derivative are found."""

    class Root(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * x).sqrt()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root = Root()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.root, x, use_reentrant=True) + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.outer = nn.Linear(4, 4, bias=False), Outer()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.outer, self.fc(x), use_reentrant=True).mean()

    x = _rows()
    x[2] = 0
    culprit = _ask(lambda m, b: m(b["x"]), {"x": x}, Net())
    assert (culprit.phase, culprit.op, culprit.module, culprit.samples) == ("backward", "sqrt", "outer.root", (2,))


def test_a_bias_of_minus_infinity_in_the_batch_is_a_mask() -> None:
    """-inf that the batch brings as a mask is meant; the softmax of the row that has nothing else is named."""
    bias = torch.zeros(6, 4)
    bias[1], bias[2, 1] = float("-inf"), float("-inf")
    culprit = _ask(lambda m, b: (m(b["x"]) + b["bias"]).softmax(-1).pow(2).mean(), {"x": _rows(), "bias": bias})
    assert (culprit.phase, culprit.op, culprit.samples) == ("forward", "softmax", (1,))


def test_counts_as_denominators_are_clamped_to_one() -> None:
    """An integer denominator that may be zero is suggested to be at least one."""
    culprit = _ask(
        lambda m, b: (m(b["x"]).sum(-1) / b["n"]).mean(), {"x": _rows(), "n": torch.tensor([3, 0, 2, 1, 1, 1])}
    )
    assert {"drop_sample"} <= _cured(culprit)
    assert culprit.op == "div"


def test_a_bad_optimizer_state_is_a_bad_state() -> None:
    """NaN in the optimizer's state before the step is blamed on the state, and fresh state is reported to cure."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(_rows()).mean().backward()
    optimizer.step()
    optimizer.state[model.weight]["exp_avg"][0, 1] = float("nan")
    culprit = _ask(lambda m, b: m(b["x"]).mean(), {"x": _rows()}, model, optimizer)
    assert (culprit.phase, culprit.cause, culprit.param) == ("optimizer", "bad-parameter", "weight")
    assert "the optimizer state of weight was non-finite before the step" in culprit.how
    assert culprit.fresh_state is True
    faulty = _ask(lambda m, b: (0 * m(b["x"]).mean()).log(), {"x": _rows()}, model, optimizer)
    assert (faulty.op, faulty.fresh_state) == ("log", False)  # the loss does not depend on it
    assert (
        _ask(lambda m, b: (0 * m(b["x"]).mean()).log(), {"x": _rows()}, model).fresh_state is None
    )  # plain SGD has no state


def _train_step(**fields: Any) -> TrainStep:
    return TrainStep(None, None, None, **fields)


def test_a_learning_rate_that_is_nan() -> None:
    """A schedule that yields NaN is told beside the update that it spoils."""
    model = nn.Linear(4, 1)
    culprit = _ask(
        lambda m, b: m(b["x"]).mean(), {"x": _rows()}, model, torch.optim.SGD(model.parameters(), lr=float("nan"))
    )
    assert (culprit.phase, culprit.cause) == ("optimizer", "optimizer-update")
    assert "the learning rate of the step is nan" in culprit.how


def test_a_divergence_that_began_in_the_optimizers_state() -> None:
    """Second moments that were lost while the first were kept throw the weights far off: fresh state is reported to
    cure."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.999, 0.9))
    batches = [{"x": torch.randn(8, 4), "y": torch.zeros(8, 1)} for _ in range(12)]
    (model(batches[0]["x"]) ** 2).mean().backward()
    optimizer.step()
    for state in optimizer.state.values():
        state["exp_avg"].fill_(30.0)
        state["exp_avg_sq"].zero_()
    culprit = localize(TrainStep(model, optimizer, lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean(), batches=batches))
    assert (culprit.cause, culprit.fresh_state) == ("divergence", True)


def test_samples_are_taken_along_their_own_dimension() -> None:
    """sample_dim names another dimension, shared keys stay whole, and other lengths are left alone."""
    batch = {"x": torch.arange(12).view(3, 4), "y": torch.arange(4), "w": torch.arange(4), "n": torch.arange(7)}
    samples = Samples(_train_step(sample_dim={"x": 1}, shared=("w",)), batch)
    taken = samples.drop([1, 2])(batch)
    assert samples.size == 4
    assert taken["x"].tolist() == [[0, 3], [4, 7], [8, 11]]
    assert (taken["y"].tolist(), len(taken["w"]), len(taken["n"])) == ([0, 3], 4, 7)


def test_replacing_reaches_across_micro_batches() -> None:
    """A healthy sample of one micro-batch may replace a bad one of another."""
    batch = [{"x": torch.tensor([0, 1])}, {"x": torch.tensor([2, 3])}]
    samples = Samples(_train_step(accumulate=2), batch)
    assert [m["x"].tolist() for m in samples.replace([3], 0)(batch)] == [[0, 1], [2, 0]]
    assert [m["x"].tolist() for m in samples.drop([1])(batch)] == [[0], [2, 3]]


CLAMPED, SIGNED = Guard(), Guard("signed")


@pytest.mark.parametrize(
    ("line", "op", "guard", "wanted"),
    [
        ("y = a / b", "div", CLAMPED, "y = a / b.clamp(min=1e-06)"),
        ("y = a / b", "div", SIGNED, "y = a / b.abs().clamp(min=1e-06).copysign(b)"),
        ("y = a / (b + c)", "div", SIGNED, "y = a / (divisor := b + c).abs().clamp(min=1e-06).copysign(divisor)"),
        ("y = a / f(b)", "div", SIGNED, "y = a / (divisor := f(b)).abs().clamp(min=1e-06).copysign(divisor)"),
        ("y = div(a, b - c)", "div", SIGNED, "y = div(a, (divisor := b - c).abs().clamp(min=1e-06).copysign(divisor))"),
        ("y = a / b", "div", Guard("clamped", whole=True), "y = a / b.clamp(min=1)"),
        ("y = a / b", "div", Guard("signed", whole=True), "y = a / b.where(b != 0, 1)"),
        ("y = a / n", "div", Guard("number"), "y = a / (n or 1e-06)"),
        ("y = a / (n - 1)", "div", Guard("number"), "y = a / (n - 1 or 1e-06)"),
        ("y = a / b", "div", Guard("complex"), "y = a / b.where(b.abs() >= 1e-06, 1e-06)"),
        ("y = a / b.sum(-1)", "div", CLAMPED, "y = a / b.sum(-1).clamp(min=1e-06)"),
        ("y = torch.sqrt(x)", "sqrt", CLAMPED, "y = torch.sqrt(x.clamp(min=1e-06))"),
        ("y = x.log().sum()", "log", CLAMPED, "y = x.clamp(min=1e-06).log().sum()"),
        ("y = (a - b) ** 0.5", "pow", CLAMPED, "y = (a - b).clamp(min=1e-06) ** 0.5"),
        ("y = torch.atanh(u)", "atanh", CLAMPED, "y = torch.atanh(u.clamp(min=-1 + 1e-06, max=1 - 1e-06))"),
        ("y /= n", "div", CLAMPED, "y /= n.clamp(min=1e-06)"),
    ],
)
def test_suggested_lines(tmp_path: Path, line: str, op: str, guard: Guard, wanted: str) -> None:
    """The clamp is put where the operator is singular, keeps the sign of a divisor, and the line still parses."""
    file = tmp_path / "user.py"
    file.write_text(f"{line}\n")
    diff = suggested_line(str(file), {None: guard}, 1, op, 1e-6)
    assert diff is not None
    assert diff.splitlines()[-1].removeprefix("+") == wanted
    compile(diff.splitlines()[-1][1:], "user.py", "exec")


@pytest.mark.parametrize(
    "divisor",
    [
        torch.tensor([2.0, 0.0, 1e-6, 1e-7]),
        torch.tensor([-2.0, -1e-6, -1e-7, -0.0, 0.0, 3.0]),
        torch.tensor([0.5, 0.0], dtype=torch.bfloat16),
        torch.tensor([-3, 0, 2]),
        torch.tensor([0, 4]),
        torch.tensor([0j, 1 + 1j, -1e-6 + 0j, 1e-9j]),
        0.0,
        0,
        -2.5,
    ],
    ids=repr,
)
def test_what_is_suggested_is_what_was_tried(tmp_path: Path, divisor: Any) -> None:
    """The printed line gives the quotients and gradients of the attempt, bit for bit, and all of them are finite."""
    line = "y = one / divide_by"
    (tmp_path / "user.py").write_text(f"{line}\n")
    file = str(tmp_path / "user.py")

    def run(code: str) -> tuple[Any, Any]:
        by = divisor.clone() if isinstance(divisor, torch.Tensor) else divisor
        leaf = isinstance(by, torch.Tensor) and (by.is_floating_point() or by.is_complex())
        values = {"one": torch.ones(()), "divide_by": by.requires_grad_() if leaf else by}
        exec(compile(code, file, "exec"), values)
        if leaf:
            values["y"].abs().sum().backward()
        return values["y"], by.grad if leaf else torch.zeros(())

    with AtLine(file, 1, "div", 1e-6) as at:
        tried = run(line)
    ((span, guard),) = at.met.guards.items()
    diff = suggested_line(file, {span: guard}, 1, "div", 1e-6)
    assert diff is not None
    printed = run(diff.splitlines()[-1][1:])
    for a, b in zip(tried, printed, strict=True):
        assert torch.equal(a, b)
        assert bool(torch.isfinite(a).all())


@pytest.mark.parametrize(
    ("body", "op", "at", "wanted"),
    [
        ("return 2 / a + a / b", "div", 1, "return 2 / a + a / b.clamp(min=1e-06)"),
        ("ä = b; return a / torch.stack([ä,\n  ä]) + ä / a", "div", 2, "ä]) + ä / a.clamp(min=1e-06)"),
        ("ä = b; return torch.log(ä)", "log", 0, "ä = b; return torch.log(ä.clamp(min=1e-06))"),
        ("a /= b", "div", 0, "a /= b.clamp(min=1e-06)"),
        ("return (a\n    .log())", "log", 0, "return (a.clamp(min=1e-06)"),
        ("return (a\n    .pow(b))", "pow", 0, "return (a.clamp(min=1e-06)"),
    ],
)
def test_the_suggestion_is_for_the_expression_that_ran(
    tmp_path: Path, body: str, op: str, at: int, wanted: str
) -> None:
    """Of several on a line, or one over several lines, the expression that ran is the one that is changed."""
    file = tmp_path / "user.py"
    file.write_text(f"import torch\n\ndef step(a, b):\n    {body}\n", encoding="utf-8")
    code = next(
        c for c in compile(file.read_text(encoding="utf-8"), str(file), "exec").co_consts if hasattr(c, "co_code")
    )
    ran = [i.offset for i in dis.get_instructions(code) if i.opname == "CALL" or i.argrepr in ("/", "/=")]
    span = span_of(code, ran[at])
    assert span is not None
    diff = suggested_line(str(file), {span: CLAMPED}, span[0], op, 1e-6)
    assert diff is not None
    assert diff.splitlines()[-1].removeprefix("+").strip() == wanted


@pytest.mark.parametrize(
    ("line", "op", "guard", "wanted"),
    [
        ("log(p) + log(1 - p)", "log", CLAMPED, "log(p.clamp(min=1e-06)) + log((1 - p).clamp(min=1e-06))"),
        ("log(log(p))", "log", CLAMPED, "log(log(p.clamp(min=1e-06)).clamp(min=1e-06))"),
        ("a / (b / c)", "div", CLAMPED, "a / (b / c.clamp(min=1e-06)).clamp(min=1e-06)"),
        ("a / (b / n)", "div", Guard("number"), "a / (b / (n or 1e-06) or 1e-06)"),
        (
            "a / (b / c)",
            "div",
            SIGNED,
            "a / (divisor := b / c.abs().clamp(min=1e-06).copysign(c)).abs().clamp(min=1e-06).copysign(divisor)",
        ),
    ],
)
def test_suggestions_for_several_expressions_of_a_line(
    tmp_path: Path, line: str, op: str, guard: Guard, wanted: str
) -> None:
    """Beside one another or one in the other: each is repaired once, however often it ran."""
    file = tmp_path / "user.py"
    file.write_text(f"{line}\n")
    nodes = [
        n for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Call) or (op == "div" and isinstance(n, ast.BinOp))
    ]
    spans = [(n.lineno, n.end_lineno or n.lineno, n.col_offset, n.end_col_offset or 0) for n in nodes]
    diff = suggested_line(str(file), dict.fromkeys(spans, guard), 1, op, 1e-6)
    assert diff is not None
    assert diff.splitlines()[-1].removeprefix("+") == wanted


def test_a_line_that_calls_the_operator_twice() -> None:
    """The line that is suggested keeps every call of the operator on it away from its pole, where several are at
    fault."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def step(m: Any, b: Any) -> Any:
        p = torch.sigmoid(m(b["x"]) * b["k"])
        return -(torch.log(p[:2]) + torch.log(1 - p[2:])).mean() + torch.log(p.detach() + 1).mean()

    with torch.no_grad():
        model.bias.fill_(1.0)
    batch = {"x": torch.randn(4, 3), "k": torch.tensor([[-1000.0], [-1000.0], [1000.0], [1000.0]])}
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, batch=batch))
    assert found.suggestion is not None
    new = found.suggestion.splitlines()[-1]
    assert new.endswith(
        "return -(torch.log(p[:2].clamp(min=1e-06)) + torch.log((1 - p[2:]).clamp(min=1e-06))).mean() + "
        "torch.log(p.detach() + 1).mean()"
    )


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_times_a_tensor(factor: float) -> None:
    """A product with an infinite number is no mask: it is where the fault begins, not the mean that turns it into
    NaN."""

    def step(m: Any, b: Any) -> Any:
        out = m(b) * factor
        moved = out + 1
        return moved.mean()

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, batch=torch.randn(4, 3)))
    assert (found.op, found.code) == ("mul", "out = m(b) * factor")


def test_a_hook_that_changes_the_layout_of_a_gradient() -> None:
    """Strides that a hook gave a gradient are a fault of layout, at the hook's line."""
    model = nn.Linear(4, 3)

    def transposed(p: Any) -> None:
        p.grad = p.grad.t().contiguous().t()

    model.weight.register_post_accumulate_grad_hook(transposed)
    culprit = _ask(lambda m, b: m(b["x"]).pow(2).mean(), {"x": _rows()}, model)
    assert (culprit.phase, culprit.param, culprit.code) == ("layout", "weight", "p.grad = p.grad.t().contiguous().t()")
    assert culprit.tensor == {"grad_strides": [1, 3], "param_strides": [4, 1]}


class _Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)

    def forward(self, x: Any) -> Any:
        return self.conv(x.permute(0, 3, 1, 2))


def test_a_layout_fault_is_cured_by_a_contiguous_input() -> None:
    """The line whose input makes the gradient's strides differ is run with a contiguous one, and shown so."""
    culprit = _ask(lambda m, b: m(b["x"]).mean(), {"x": torch.randn(2, 6, 6, 64)}, _Depthwise())
    assert (culprit.phase, culprit.param, culprit.established) == ("layout", "conv.weight", "cured")
    assert culprit.suggestion is not None
    assert "return self.conv(x.permute(0, 3, 1, 2).contiguous())" in culprit.suggestion


def test_forward_mode_names_the_operator_whose_derivative_fails() -> None:
    """jvp runs the derivative of sqrt in the same expression: sqrt is named, not the division in it."""

    def step(m: Any, b: Any) -> Any:
        out, tangent = torch.func.jvp(lambda x: m(x).pow(2).sum(-1).sqrt(), (b["x"],), (torch.ones_like(b["x"]),))
        return (out + tangent).mean()

    x = _rows()
    x[2] = 0
    culprit = _ask(step, {"x": x})
    assert (culprit.phase, culprit.op, culprit.samples) == ("forward", "sqrt", (2,))
    assert _cured(culprit) == {"drop_sample", "eps"}


def test_layers_that_overflow_one_after_another() -> None:
    """Where several layers overflow, each for other values, the first is named, not the last, whose repair hides the
    others."""

    class Layer(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 30000 * x.sign()

    model = nn.Sequential(nn.Linear(4, 4, bias=False), *(Layer() for _ in range(4))).half()
    nn.init.eye_(model[0].weight)
    culprit = _ask(
        lambda m, b: (m(b["x"]) / 1e4).float().mean(), {"x": torch.linspace(1, 9000, 24).view(6, 4).half()}, model
    )
    assert (culprit.op, culprit.cause, culprit.established) == ("add", "dtype-overflow", "cured")
    assert culprit.module == "2"


def test_a_number_before_the_samples() -> None:
    """A tensor of one entry that comes first in the batch does not make it a batch of one."""
    batch = {"scale": torch.ones(1), "x": _rows(), "w": torch.tensor([1.0, 1, 0, 1, 1, 1])}
    culprit = _ask(lambda m, b: (b["scale"] * m(b["x"]) / b["w"][:, None]).mean(), batch)
    assert culprit.samples == (2,)


def test_layers_of_unknown_size() -> None:
    """Lazy modules that have not seen a batch are told as such."""
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ReplayError, match="lazy modules"):
        localize(
            TrainStep(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), lambda m, b: m(b).mean(), _rows())
        )


def test_the_first_of_two_sub_steps() -> None:
    """What fails in the first optimizer's loss spoils the second's as well; that repairing it leaves the derivative is
    no matter."""
    torch.manual_seed(0)
    models = {"d": nn.Linear(4, 1), "g": nn.Linear(4, 4)}
    optimizers = {name: torch.optim.SGD(m.parameters(), lr=0.01) for name, m in models.items()}

    def judge(m: Any, b: Any) -> Any:
        return -torch.log(m["d"](b["x"]).sigmoid() * b["w"][:, None]).mean()

    def make(m: Any, b: Any) -> Any:
        return m["d"](m["g"](b["x"])).mean()

    batch = {"x": _rows(), "w": torch.tensor([1.0, 1, 0, 1, 1, 1])}
    culprit = localize(TrainStep(models, optimizers, {"d": judge, "g": make}, batch))
    assert (culprit.phase, culprit.op, culprit.samples, culprit.established) == ("forward", "log", (2,), "cured")


def test_fresh_state_that_only_puts_off_a_divergence() -> None:
    """Under a rate that keeps rising, forgetting the momentum helps for a while: that is no cure, a lower rate is."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.95)

    def faster(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * 1.25**step

    torch.manual_seed(0)
    x = torch.randn(8, 4)
    for _ in range(3):
        model(x).mean().backward()
        optimizer.step()
    step = TrainStep(
        model, optimizer, lambda m, b: ((m(b) - 1) ** 2).mean(), batches=lambda _: x, before_step=faster, first_step=0
    )
    culprit = localize(step, step=60)
    assert (culprit.cause, culprit.fresh_state) == ("divergence", False)
    assert "lower_lr" in _cured(culprit)


def test_a_logarithm_that_meets_a_zero_and_an_overflow() -> None:
    """The infinity that it read is one thing, the zero of which it makes -inf another: not the mean, which adds them,
    is named."""
    x = _rows()
    x[2] = 0
    x[2, 0] = 3000
    culprit = _ask(lambda m, b: (b["x"] @ m.weight).exp().log().mean(), {"x": x})
    assert culprit.op in ("exp", "log")
    assert culprit.samples == (2,)


@pytest.mark.parametrize("whole", [True, False], ids=["model", "layer"])
def test_names_of_a_compiled_model_are_the_users(whole: bool) -> None:
    """A parameter is named as it is without torch.compile, of a compiled model or of a compiled layer in it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight[0, 1] = float("nan")
    compiled = (
        torch.compile(model, backend="eager")
        if whole
        else nn.Sequential(model[0], torch.compile(model[1], backend="eager"))
    )
    culprit = _ask(lambda m, b: m(b["x"]).mean(), {"x": _rows()}, compiled)
    assert (culprit.phase, culprit.module, culprit.param) == ("parameters", "1", "1.weight")


def test_a_cast_in_the_code_is_left_out() -> None:
    """The code casts to half precision by itself: single precision is tried without that cast."""

    def step(m: Any, b: Any) -> Any:
        h = m(b["x"]) * 30
        return (h.half() @ h.half().t()).float().mean()

    model = nn.Linear(4, 4, bias=False)
    nn.init.eye_(model.weight)
    culprit = _ask(step, {"x": 10 + torch.linspace(0, 1, 24).view(6, 4)}, model)
    assert (culprit.op, culprit.cause) == ("mm", "dtype-overflow")
    assert "fp32" in _cured(culprit)
    assert "without the casts" in next(f.how for f in culprit.fixes if f.name == "fp32")


def test_a_row_of_a_graph_is_told() -> None:
    """The nodes of 6 graphs lie in one tensor, the third graph is empty: its row of the readout is told."""
    at = torch.tensor([0, 0, 1, 1, 1, 3, 3, 3, 4, 4, 5])

    def step(m: Any, b: Any) -> Any:
        h = torch.zeros(6, 4).index_add(0, at[: len(b["nodes"])], m(b["nodes"]))
        n = torch.zeros(6).index_add(0, at[: len(b["nodes"])], torch.ones(len(b["nodes"])))
        return ((h / n.unsqueeze(1)).sum(1) - b["y"]).pow(2).mean()

    culprit = _ask(step, {"nodes": torch.rand(11, 4), "y": torch.rand(6)})
    assert culprit.op == "div"
    assert culprit.samples is None
    assert any("makes row 2 of 6 non-finite" in line for line in culprit.how)
