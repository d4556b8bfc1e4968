"""The facts recorded in a process of the user's program: plain data, judged in another process.

Modules, parameters and optimizers are numbers, given in the order in which they were met. A fact is written as one JSON
object a line, with the name of its class as `kind`; adding one is adding a dataclass here or in `weight_facts`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A line of the user's code that was running."""

    file: str
    line: int
    function: str = ""


Stack = tuple[Place, ...]
"""The user's frames, the innermost first."""


@dataclass(frozen=True, slots=True)
class ParameterSeen:
    """A parameter. `made`: where it was created, which is not known of all. `leaf`: a tensor that is no Parameter.
    `zero`: all elements that were looked at are 0 at first."""

    parameter: int
    shape: tuple[int, ...]
    dtype: str
    made: Stack = ()
    leaf: bool = False
    zero: bool = False


@dataclass(frozen=True, slots=True)
class ModuleSeen:
    """A module ran for the first time while it was watched.

    root: the outermost module that ran then. name: its name in the root; of an unregistered one, the attribute that
    holds it. registered: the root knows it. parameters: local name -> number, of its own ones. holder: class of the
    module that holds an unregistered one. hidden: attribute -> numbers of parameters in it that are not registered.
    at: where its forward begins, if it is the user's.
    """

    module: int
    type: str
    root: int
    name: str = ""
    registered: bool = True
    parameters: dict[str, int] = dataclasses.field(default_factory=dict)
    holder: str = ""
    hidden: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class ModuleRan:
    """A module ran in this way; told once for each way. `connected`: its output requires a gradient."""

    module: int
    training: bool
    grad: bool
    connected: bool
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """A module that no other module calls, was called. `parameters`: how many it has."""

    root: int
    step: int
    training: bool
    grad: bool
    parameters: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class OptimizerMade:
    """An optimizer was made. groups: per group, its options that are numbers and the parameters' numbers."""

    optimizer: int
    type: str
    groups: tuple[dict[str, Any], ...]
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Cleared:
    """zero_grad was called, of an optimizer or of a module with parameters of these optimizers. `gradients`: there were
    some that were not zero."""

    optimizers: tuple[int, ...]
    step: int
    gradients: bool
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward pass. nodes: names of the autograd nodes from the loss on, along the first input. reached: numbers of
    the leaves that get a gradient, None where the graph was not walked. divided: by what the program has divided the
    mean that a loss function gave; 0 where that is not known."""

    step: int
    loss: float | None
    nodes: tuple[str, ...] = ()
    reached: tuple[int, ...] | None = None
    at: Place | None = None
    divided: float = 1.0


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A second or later backward pass since an optimizer's step has ended. norm: of all its gradients together."""

    optimizer: int
    step: int
    norm: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """An optimizer is about to update. parameters, none, zero: how many it has, how many have no gradient, and one of
    zero. norm: of all gradients together. cleared: since its last step, its gradients were gone at some time."""

    optimizer: int
    step: int
    parameters: int
    none: int
    zero: int
    norm: float
    cleared: bool
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """In some steps: norm of the gradient by parameter; None where there is none. `frozen`: requires no gradient."""

    optimizer: int
    step: int
    norms: dict[str, float | None]
    frozen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """How far parameters are from where they were first seen: the largest absolute difference, by parameter."""

    step: int
    distance: dict[str, float]


@dataclass(frozen=True, slots=True)
class LossComputed:
    """A loss was computed of a prediction and a target.

    name: of the function; "difference" for one that the program writes itself. trained: the prediction carries a
    gradient. prediction, target: shapes; for a difference, `target` is the shape of the difference. behind: autograd
    nodes that made the prediction, the last one first, without those that only change its shape. labels: how often each
    class is in the target, if it holds classes. values: what was measured of the values, in some steps. squeezed: the
    prediction was [B, 1] before it was [B].
    """

    name: str
    step: int
    trained: bool
    prediction: tuple[int, ...]
    target: tuple[int, ...] | None
    behind: tuple[str, ...] = ()
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    at: Place | None = None
    squeezed: bool = False


@dataclass(frozen=True, slots=True)
class Normalised:
    """A softmax was taken over dimension `dim` of a tensor. given: the lengths of the first dimensions, up to two, of
    what the outermost module that runs was given. Told a few times for each line."""

    step: int
    shape: tuple[int, ...]
    dim: int
    given: tuple[int, ...]
    grad: bool
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class ModeMatters:
    """A module that does something else in training: dropout with this probability, or batch norm (0).

    unused: the running statistics of a batch norm are those that it was made with, as no batch went into them.
    """

    module: int
    root: int
    dropout: float = 0.0
    made: Stack = ()
    unused: bool = False


@dataclass(frozen=True, slots=True)
class EvalCalled:
    """A module was put into eval mode by eval()."""

    module: int
    step: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropout function was called by a module that is no dropout module. `training`: what it was told; `mode`: the
    mode of the outermost module. Told a few times for each line and way."""

    root: int
    step: int
    dropout: float
    training: bool
    mode: bool
    grad: bool
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class InputSeen:
    """What the outermost module was given: its first tensor. digest: the same for the same values. tensor: number of
    the tensor, origin: of the one that it is a view of, with `rows` if that has as many dimensions. loader: the one
    that gave a batch last. values: what was measured of a floating-point tensor, in some steps. follows: it requires a
    gradient, as what another model gave does."""

    root: int
    step: int
    training: bool
    grad: bool
    shape: tuple[int, ...]
    dtype: str
    digest: int
    tensor: int
    origin: int
    rows: int | None = None
    loader: int | None = None
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    at: Place | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True)
class LoaderMade:
    """A DataLoader was made. samples: of its dataset, None if that has no length. order: "sequential", "random", or the
    class of the sampler."""

    loader: int
    samples: int | None
    batch: int | None
    order: str
    workers: int
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class LoaderBegun:
    """A loader is read from its beginning. Told a limited number of times for each line."""

    loader: int
    step: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Seeded:
    """A global random generator got a seed. Told a limited number of times for each line."""

    step: int
    seed: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Whole numbers below `of` were drawn from a generator of the program's own. digest: the same for the same numbers.
    Told a limited number of times for each line."""

    step: int
    count: int
    of: int
    digest: int
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class Picked:
    """The largest value over dimension `dim` of a tensor was looked for (argmax, max). `result`: shape of the indices.
    Told a few times for each line."""

    picked: int
    step: int
    shape: tuple[int, ...]
    dim: int
    result: tuple[int, ...]
    at: Place | None = None


@dataclass(frozen=True, slots=True)
class PickCompared:
    """Such indices were compared with another tensor for equality: the shapes of both, and of the result. base: of what
    the other one is a view of, if it is one."""

    picked: int
    step: int
    shape: tuple[int, ...]
    other: tuple[int, ...]
    result: tuple[int, ...]
    at: Place | None = None
    base: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Overlap:
    """At the end: how many different samples an evaluation at this place was given, how many of them were trained on,
    and how many different samples were, how often in all. near: how many of `compared` ones lie close to a few samples
    that were trained on, and far from all others. alike: where samples hold whole numbers only, how many
    of the trained samples equal a given one, by how often two of one batch are equal; at most 1."""

    root: int
    samples: int
    shared: int
    trained: int
    times: int
    near: int = 0
    compared: int = 0
    stack: Stack = ()
    alike: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerDrew:
    """A worker of a loader has read its first or second batch. states: a number for the state of each random generator,
    by name. `parent`: the process that trains; `stack`: where the loader was made."""

    parent: int
    dataset: int
    worker: int
    seed: int
    batch: int
    states: dict[str, int]
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """The observation paused: what comes next does not follow on what came before."""

    step: int


@dataclass(frozen=True, slots=True)
class Over:
    """The observation has ended, with the program (`ended`) or because enough was seen."""

    steps: int
    ended: bool


Fact = Any
KINDS: dict[str, type] = {}
"""By name; those of other modules are added by `known`."""


def known(names: dict[str, Any]) -> None:
    """Lets the facts among the names of a module be read."""
    KINDS.update({k.__name__: k for k in names.values() if dataclasses.is_dataclass(k) and isinstance(k, type)})


def as_json(fact: Fact) -> dict[str, Any]:
    """To be written."""
    return {"kind": type(fact).__name__, **{f.name: getattr(fact, f.name) for f in dataclasses.fields(fact)}}


def from_json(line: dict[str, Any]) -> Fact:
    """As it was before it was written. Fields named `at` and `inside` are places, `stack` and `made` stacks."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in line.items() if k != "kind"}
    for name in ("at", "inside"):
        if fields.get(name) is not None:
            fields[name] = Place(*fields[name])
    for name in ("stack", "made"):
        if name in fields:
            fields[name] = tuple(Place(*place) for place in fields[name])
    return KINDS[line["kind"]](**fields)


known(dict(globals()))
