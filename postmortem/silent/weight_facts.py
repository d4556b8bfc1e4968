"""Facts of weights (updated, scaled, loaded, kept, shared), of targets and positions, and of what a step costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postmortem.silent.facts import Place, Stack, known


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rate of each group of an optimizer at a step, where it is not that of the step before."""

    optimizer: int
    step: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What the first layer with parameters of its own got, in a model that was given numbers, in some steps. sizes: the
    smallest and the largest root mean square of the columns of a table; else that of all elements."""

    root: int
    step: int
    type: str
    sizes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Updated:
    """What an optimizer's step changed, in some steps; by parameter, over some of its elements.

    weights: norm before the step. changes: norm of the difference. kept: share of the elements with a gradient other
    than zero that did not change.
    """

    optimizer: int
    step: int
    weights: dict[str, float]
    changes: dict[str, float]
    kept: dict[str, float]


@dataclass(frozen=True, slots=True)
class Rows:
    """How far the rows of weights (one for each output) are apart, in some steps: the largest difference of an element
    from that of the first row, and the largest element, by parameter."""

    step: int
    apart: dict[str, float]
    largest: dict[str, float]


@dataclass(frozen=True, slots=True)
class Written:
    """Where a parameter got what it has at the first step: by a function of torch.nn.init, or the type by `to`."""

    parameter: int
    by: str
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class SchedulerMade:
    """A learning rate scheduler was made. options: those that are numbers."""

    scheduler: int
    type: str
    optimizer: int
    options: dict[str, Any]
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Scheduled:
    """step() of a scheduler was called, and set these learning rates."""

    scheduler: int
    step: int
    rates: tuple[float, ...]
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Clipped:
    """Gradients were clipped. norm: before, of all together; of `clip_grad_value_`, the largest that it allows. scale:
    the factor of a GradScaler that they still had."""

    step: int
    by: str
    limit: float
    norm: float
    scale: float
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """A GradScaler at work. action: "scale" made a scaled loss; a "backward" pass began at one; "unscale"; "step" of
    `optimizer`."""

    action: str
    step: int
    scale: float
    optimizer: int | None = None
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Activated:
    """A relu, tanh or sigmoid in the graph of a backward pass, in some steps.

    flat: share of the units of a relu that are 0 for every sample; still: that were so in the last looks as well. Of
    the others, share of the values within 1 % of their bounds. parameters: of the layer whose output it gets. gain: of
    that layer, root mean square of its weights times the root of the number of inputs. inputs: root mean square of what
    the layer got, if known. hidden: another layer comes between it and the loss.
    """

    step: int
    function: str
    width: int
    flat: float
    still: float
    parameters: tuple[int, ...]
    gain: float
    inputs: float | None
    hidden: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """load_state_dict of a module. given, own, matched: elements in the state, in the module, in those of one name.
    alias: of these, elements that are the module's own memory. taken: where and at which step `state_dict()` gave the
    state, if that was at an earlier step and its tensors are still those of the module that it was taken of."""

    module: str
    step: int
    strict: bool
    given: int
    own: int
    matched: int
    alias: int
    names: tuple[str, str]
    taken: int | None = None
    stack: Stack = ()
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """torch.save was given a state that `state_dict()` had given at an earlier step (`taken`, at `stack`), and whose
    tensors are still the live ones."""

    step: int
    taken: int
    stack: Stack = ()
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Copied:
    """A parameter was copied from another one: by copy.deepcopy, or by loading the state of another module."""

    parameter: int
    origin: int
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Untied:
    """Two modules that had one parameter, tied at `stack`, no longer have. kept: the parameter of the one; other: of
    the other one, None if that module is gone; lost: its class. made: where the other one got it."""

    step: int
    kept: int
    other: int | None
    lost: str
    stack: Stack = ()
    made: Stack = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """This process is one of several that train together."""

    rank: int
    world: int


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A model was wrapped in DistributedDataParallel."""

    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """The program called a function of torch.distributed that exchanges tensors."""

    name: str
    step: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """To compare ranks, in some steps before the update: per parameter of an optimizer, in its order, the shape, the
    sum and the sum of squares of some elements, and the norm of the gradient."""

    optimizer: int
    step: int
    shapes: list[list[int]]
    sums: list[list[float]]
    gradients: list[float]


@dataclass(frozen=True, slots=True)
class TargetsMatched:
    """The targets of a cross entropy are the tokens that the model was given, some positions on.

    shift: how many positions on from the one whose output is compared; share: of the targets that agree; other: the
    largest share of another shift.
    """

    step: int
    shift: int
    share: float
    other: float
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class TargetsPadded:
    """Which targets of a cross entropy count, where some of the tokens that the model was given are padding.

    counted: targets that are neither ignored nor have a weight of 0; padding: how many of them belong to padding;
    tokens: positions that are none; constant: the counted targets are all one class.
    """

    step: int
    counted: int
    padding: int
    tokens: int
    constant: bool
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """A copy of a model was run again with other tokens, to see which outputs depend on which positions.

    question: "future" (other tokens from a position on: what changes before it), "order" (two tokens swapped: what
    changes behind both), "padding" and "tokens" (another embedding at padding, or at one token: what changes at other
    tokens). change: the largest change there of the output of `module`, the first one that brings positions together,
    as a share of its largest value. inside: where its forward begins, if it is the user's. at: where it is called.
    """

    step: int
    question: str
    change: float
    module: str
    inside: Place | None = None
    at: Place | None = None
    positions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Before this step the program itself changed a parameter, outside of `optimizer.step()`; told where each step is
    looked at closely. before, after: its norm; change: norm of the difference; over some of its elements, as of
    `Updated`. at: the line, where a function of torch made the change."""

    parameter: int
    step: int
    before: float
    after: float
    change: float
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class TargetsGiven:
    """The targets of a loss that is defined for some values only, in some steps: between `lowest` and `highest`.

    outside: share of the targets that are none of these values and count: a gradient of the loss flows back from them.
    """

    name: str
    step: int
    lowest: float
    highest: float
    outside: float
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Took:
    """The seconds of the parts of a step, without those of the observation: medians of so many steps.

    parts: "data" (waiting for a loader), "forward" (with all that comes before the backward pass), "backward",
    "between" (after it and before the optimizer), "optimizer". queued: a device works on its own time, and what was
    measured is how long it took to give it work.
    """

    steps: int
    parts: dict[str, float]
    queued: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes at the third step of an optimizer. activations: what its backward pass needs. peak: the most that was
    allocated on a CUDA device, None without one."""

    optimizer: str
    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """What an optimizer holds: type, device and number of parameters."""

    optimizer: str
    kinds: list[list[str | int]]


@dataclass(frozen=True, slots=True)
class Stacked:
    """Parts of one tensor were stacked, as the rows of a batch. used, of: elements in them, and in the whole tensor.
    digest: the same for the same parts. Told a limited number of times for each line."""

    step: int
    count: int
    used: int
    of: int
    digest: int
    at: Place | None = None


known(dict(globals()))
