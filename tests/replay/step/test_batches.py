"""Batches of any build: what holds the tensors is looked into, copied and put together again."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.rerun.samples import number_listed  # noqa: E402
from postmortem.replay.step.batches import parts_of, tensor_map, tensors_in  # noqa: E402

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "x y")


@dataclass
class Rows:
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any


def _get(batch: Any, name: str) -> Any:
    value = getattr(batch, name) if hasattr(batch, name) else batch[name]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _built(make: Any, **fields: Any) -> TrainStep:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    x[2, 1] = float("nan")
    model = nn.Linear(3, 2)
    step = lambda m, b: F.cross_entropy(m(_get(b, "x")), _get(b, "y"))  # noqa: E731
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, make(x=x, y=y), **fields)


KINDS = [
    dict,
    OrderedDict,
    UserDict,
    Pair,
    Rows,
    Frozen,
    SimpleNamespace,
    lambda x, y: {"x": x.numpy(), "y": y.numpy()},
    lambda x, y: Rows(x.numpy(), y),
]


@pytest.mark.parametrize("make", KINDS)
def test_every_holder_of_tensors(make: Any) -> None:
    """Batch, sample, precision and cures are found whatever the batch is, and the user's batch stays as it was."""
    built = _built(make)
    before = [t.clone() for t in tensors_in(built.batch)]
    found = localize(built)
    assert (found.phase, found.samples, found.precision_only) == ("data", (2,), False)
    assert {f.name for f in found.fixes if f.cured} == {"drop_sample", "sanitize_input"}
    assert all(torch.allclose(a, b, equal_nan=True) for a, b in zip(before, tensors_in(built.batch), strict=True))


def test_fields_of_an_object_have_names() -> None:
    """`shared` and `sample_dim` name the fields of a dataclass as they name keys."""
    built = _built(lambda x, y: Rows(x.t().contiguous(), y), sample_dim={"x": 1})
    built.step = lambda m, b: F.cross_entropy(m(b.x.t()), b.y)
    assert localize(built).samples == (2,)


def test_what_holds_no_tensor_is_passed_on() -> None:
    """Strings, numbers, text arrays and objects without tensors stay the very same; types are kept."""
    words, thing = np.array(["a", "b"]), SimpleNamespace(name="x")
    batch = (torch.ones(2), [words, None, "text", 3], thing)
    again = tensor_map(lambda t: t + 1, batch)
    assert again[0].tolist() == [2.0, 2.0]
    assert again[1][0] is words
    assert again[1][1:] == [None, "text", 3]
    assert again[2] is thing
    assert parts_of(nn.Linear(1, 1)) is None
    assert tensor_map(lambda t: t + 1, np.arange(3, dtype=np.int16)).dtype == np.int16


def test_arrays_that_torch_cannot_hold() -> None:
    """Reversed views are copied first, other byte orders left alone."""
    reverse = np.arange(4.0)[::-1]
    assert tensor_map(lambda t: t + 1, reverse).tolist() == [4.0, 3.0, 2.0, 1.0]
    other = np.arange(3, dtype=">f4")
    assert tensor_map(lambda t: t, other) is other


def test_values_from_another_thread() -> None:
    """What another thread made of finite values cannot be watched, which is said."""

    def step(m: Any, b: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            part = pool.submit(lambda: m(b["x"]) / (b["x"] - b["x"]).sum()).result()
        return part.mean()

    built = _built(lambda x, y: {"x": torch.ones(4, 3), "y": y})
    built.step = step
    assert any("another thread" in line for line in localize(built).how)


def _detect(pick: Any) -> Any:
    """The loss of a detector on images of several sizes; `pick` gives (image, boxes) pairs of a batch."""

    def step(m: Any, b: Any) -> Any:
        losses = [
            ((m(image.mean((1, 2))) - torch.log(boxes[:, 2:] - boxes[:, :2]).mean()) ** 2).mean()
            for image, boxes in pick(b)
        ]
        return torch.stack(losses).mean()

    return step


_LISTED = {
    "a list of dicts": (lambda images, boxes: [{"image": i, "boxes": b, "id": 0} for i, b in zip(images, boxes, strict=True)],  # noqa: E501
                        lambda b: [(s["image"], s["boxes"]) for s in b]),
    "a list of pairs": (lambda images, boxes: list(zip(images, boxes, strict=True)), lambda b: b),
    "lists of images and targets": (lambda images, boxes: (images, [{"boxes": b} for b in boxes]),
                                    lambda b: [(i, t["boxes"]) for i, t in zip(*b, strict=True)]),
    "lists under names": (lambda images, boxes: {"image": tuple(images), "boxes": tuple(boxes), "id": torch.arange(len(images))},  # noqa: E501
                          lambda b: list(zip(b["image"], b["boxes"], strict=True))),
}  # fmt: skip


@pytest.mark.parametrize("kind", _LISTED)
def test_samples_that_are_listed_one_by_one(kind: str) -> None:
    """Images of several sizes with their boxes: the one with an empty box is named, and the step is fine without it."""
    make, pick = _LISTED[kind]
    torch.manual_seed(0)
    images = [torch.rand(3, 4 + k, 5) for k in range(4)]
    low = [torch.rand(k + 1, 2) for k in range(4)]
    boxes = [torch.cat([b, b + 0.5], 1) for b in low]
    boxes[2][1, 3] = boxes[2][1, 1]
    model = nn.Linear(3, 1)
    culprit = localize(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), _detect(pick), make(images, boxes))
    )
    assert (culprit.phase, culprit.op, culprit.samples) == ("forward", "log", (2,))
    assert {"drop_sample", "eps"} == {f.name for f in culprit.fixes if f.cured}


def test_listed_samples_of_one_length() -> None:
    """Sequences that happen to be of one length are samples if there are more of them than their length; a few views of
    a batch are none."""
    samples = [{"x": torch.rand(5, 4), "keep": torch.ones(5)} for _ in range(12)]
    assert number_listed(samples) == 12
    assert number_listed(samples[:5]) == 0


def test_what_is_no_list_of_samples() -> None:
    """Pairs of batches, graphs and lists of collated tensors keep their sample dimension."""
    assert number_listed([torch.rand(8, 5), torch.rand(8)]) == 0
    assert number_listed((torch.rand(20, 4), torch.zeros(2, 50, dtype=torch.long), torch.zeros(20))) == 0
    assert number_listed([(torch.rand(8, 5), torch.rand(8)), (torch.rand(8, 3), torch.rand(8))]) == 0
    assert number_listed({"x": torch.rand(3, 2), "names": ["a", "b", "c"]}) == 0
