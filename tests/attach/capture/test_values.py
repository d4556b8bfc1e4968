"""Nested values survive the way through JSON and tensors, bit for bit; what cannot be stored is named."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from postmortem.attach.capture.values import NotStored, Packer, Unpacker  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16,
]  # fmt: skip


def through(value: Any, like: Any = None) -> tuple[Any, Packer]:
    """`value` after the way through JSON text."""
    packer = Packer()
    told = json.loads(json.dumps(packer.pack(value, "batch"), allow_nan=False))
    return Unpacker(packer.tensors).unpack(told, like), packer


def same(a: Any, b: Any) -> bool:
    """Equal in class and in every bit, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        # strides lead to no element of an empty tensor
        alike = a.dtype == b.dtype and a.shape == b.shape and (not a.numel() or a.stride() == b.stride())
        bits = [t.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return alike and torch.equal(*bits) and a.requires_grad == b.requires_grad
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    torch.manual_seed(draw(st.integers(0, 99)))
    t = (torch.rand(shape) * 9).to(dtype)
    return t.transpose(0, -1) if draw(st.booleans()) and t.dim() and dtype in DTYPES[:2] else t


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), tensors(),
    st.sampled_from([np.arange(6.0).reshape(2, 3), np.array(["a", "bcd"]), np.float32(0.1), np.array([], ">i2")]),
)  # fmt: skip
keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()), st.none(), st.just("$"))
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=3).map(lambda v: deque(v, maxlen=5)),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(nested)
def test_nested_values_come_back(value: Any) -> None:
    """Whatever the nesting, types, bits and strides are those that were packed, and nothing is left out."""
    back, packer = through(value)
    assert same(value, back)
    assert packer.unstored == []


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Graph:
    x: Any
    name: str


@pytest.mark.parametrize(
    "value",
    [
        Pair(torch.ones(2), 3),
        UserDict(a=torch.ones(2)),
        Graph(torch.ones(2), "a"),
    ],
    ids=["namedtuple", "UserDict", "dataclass"],
)
def test_classes_come_from_the_programs_own_batch(value: Any) -> None:
    """An object of a class is made again from one of the same class; no class is looked up by its name."""
    packed, _ = through(value)
    assert type(packed) is not type(value)
    other = {"Pair": Pair(0, 0), "UserDict": UserDict(a=0), "Graph": Graph(torch.zeros(1), "b")}[type(value).__name__]
    back, _ = through(value, other)
    assert type(back) is type(value)
    parts = [vars(v) if hasattr(v, "__dict__") else v._asdict() for v in (value, back)]
    assert repr(parts[0]) == repr(parts[1])


def test_what_cannot_be_stored_is_named() -> None:
    """A function and a structure that holds itself are left out under their place and class."""
    knot: list[Any] = [1]
    knot.append(knot)
    back, packer = through({"f": print, "knot": knot, "x": 2})
    assert isinstance(back["f"], NotStored)
    assert back["x"] == 2
    assert [line.split(" (")[0] for line in packer.unstored] == ["batch.f", "batch.knot[1]"]
    assert "builtin_function_or_method" in packer.unstored[0]


def test_the_same_tensor_is_stored_once() -> None:
    """A batch that holds one tensor twice holds one tensor twice again; a leaf that needs a gradient still does."""
    t = torch.ones(3, requires_grad=True)
    back, packer = through([t, {"again": t}, torch.eye(2).to_sparse()])
    assert len(packer.tensors) == 3
    assert back[0] is back[1]["again"]
    assert back[0].requires_grad
    assert torch.equal(back[2].to_dense(), torch.eye(2))
