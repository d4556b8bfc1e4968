"""Nested values as JSON and tensors, and back: batches, states of optimizers, of schedulers and of generators.

Every value becomes one that JSON has, or an object with the key "$", which names its kind. Tensors are kept beside it
by key. What cannot be stored without running code of the user's at reading (functions, open files) is named.
"""

from __future__ import annotations

import base64
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.attach.capture.tensors import STORED
from postmortem.replay.step.batches import parts_of, with_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEEPEST = 64
_PLAIN = (type(None), bool, int, str)
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
_KINDS = {kind: name for name, kind in _SEQUENCES.items()}


class NotStored:
    """In the place of a value that the capture does not hold. kind: its class."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"NotStored({self.kind!r})"


class Packer:
    """Collects values. tensors: what is to be stored beside the JSON. unstored: path and class of what is left out."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.unstored: list[str] = []
        self._keys: dict[int, str] = {}
        self._alive: list[Any] = []  # an id is that of one object as long as it lives

    def pack(self, value: Any, name: str) -> Any:
        """`value` as JSON has it. name: what it is called where it cannot be stored, and in the keys of its tensors."""
        return self._value(value, name, ())

    def _value(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return {"$": "float", "v": value.hex()}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, name)
        if kind is complex:
            return {"$": "complex", "v": [value.real.hex(), value.imag.hex()]}
        if kind in (bytes, bytearray):
            return {"$": kind.__name__, "v": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$": "dtype", "v": str(value).removeprefix("torch.")}
        if id(value) in above or len(above) > _DEEPEST:
            return self._left_out(value, name)
        return self._container(value, name, (*above, id(value)))

    def _container(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind is list or kind is deque or kind in _KINDS:
            parts = [self._value(v, f"{name}[{i}]", above) for i, v in enumerate(value)]
            if kind is list:
                return parts
            return {"$": _KINDS[kind], "v": parts} if kind in _KINDS else {"$": "deque", "v": parts, "n": value.maxlen}
        if kind is dict or kind is OrderedDict:
            return {"$": "dict" if kind is dict else "ordered", "v": self._items(value, name, above)}
        parts_ = parts_of(value)
        if parts_ is None:
            return self._left_out(value, name)
        family = "mapping" if hasattr(value, "keys") else "tuple" if isinstance(value, tuple) else "object"
        return {"$": "object", "class": _class(value), "like": family, "v": self._items(parts_, name, above)}

    def _items(self, items: Mapping[Any, Any], name: str, above: tuple[int, ...]) -> list[Any]:
        return [[self._value(k, name, above), self._value(v, f"{name}.{k}", above)] for k, v in items.items()]

    def _left_out(self, value: Any, name: str) -> Any:
        self.unstored.append(f"{name} ({_class(value)})")
        return {"$": "unstored", "class": _class(value)}

    def _tensor(self, t: torch.Tensor, name: str) -> Any:
        known = self._keys.get(id(t))
        if known is not None:
            return {"$": "same", "v": known}
        local = getattr(t, "_local_tensor", t).detach()
        if local.is_sparse and type(local) is torch.Tensor:
            local = local.coalesce()
            parts = [self._tensor(local.indices(), name), self._tensor(local.values(), name)]
            return {"$": "sparse", "shape": list(local.shape), "v": parts}
        odd = local.layout != torch.strided or local.is_quantized or local.is_nested or local.device.type == "meta"
        if odd or type(local) not in (torch.Tensor, torch.nn.Parameter):
            return self._left_out(t, name)
        key = self._new(name)
        self._keys[id(t)] = key
        self._alive.append(t)
        told: dict[str, Any] = {"$": "tensor", "key": key}
        if t.requires_grad and t.is_leaf:
            told["grad"] = True
        if _strides_matter(local):
            told["stride"] = list(local.stride())
        local = local.resolve_conj().resolve_neg()
        if local.dtype not in STORED:
            told |= {"dtype": str(local.dtype).removeprefix("torch."), "shape": list(local.shape)}
            local = local.contiguous().reshape(-1).view(torch.uint8)
        self.tensors[key] = local
        return told

    def _array(self, value: Any, name: str) -> Any:
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            return self._left_out(value, name)
        key = self._new(name)
        raw = np.frombuffer(array.tobytes() or b"", dtype=np.uint8)
        self.tensors[key] = torch.from_numpy(raw.copy())
        scalar = isinstance(value, np.generic)
        return {"$": "scalar" if scalar else "array", "key": key, "dtype": array.dtype.str, "shape": list(array.shape)}

    def _new(self, name: str) -> str:
        key, n = name, 2
        while key in self.tensors:
            key, n = f"{name} #{n}", n + 1
        return key


def _strides_matter(t: torch.Tensor) -> bool:
    """Another order of the dimensions in memory (channels_last): kernels may round in another way."""
    if t.is_contiguous() or t.dtype not in STORED:
        return False
    strides = t.stride()
    order = sorted(range(t.dim()), key=lambda d: (-strides[d], d))
    return t.permute(order).is_contiguous()


def _class(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Unpacker:
    """Reads what a `Packer` made. tensors: by key. missing: what could not be given back."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[str, torch.Tensor] = {}
        self.missing: list[str] = []

    def unpack(self, told: Any, like: Any = None) -> Any:
        """The value. like: one of the program's own in its place, which gives classes, devices and what is missing."""
        if type(told) is list:
            return [self.unpack(v, _at(like, i)) for i, v in enumerate(told)]
        if type(told) is not dict:
            return told
        return getattr(self, f"_{told['$']}")(told, like)

    def _float(self, told: Any, like: Any) -> float:
        return float.fromhex(told["v"])

    def _complex(self, told: Any, like: Any) -> complex:
        return complex(*map(float.fromhex, told["v"]))

    def _bytes(self, told: Any, like: Any) -> bytes:
        return base64.b64decode(told["v"])

    def _bytearray(self, told: Any, like: Any) -> bytearray:
        return bytearray(base64.b64decode(told["v"]))

    def _dtype(self, told: Any, like: Any) -> torch.dtype:
        found = getattr(torch, told["v"])
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{told['v']} is not a dtype")
        return found

    def _deque(self, told: Any, like: Any) -> deque[Any]:
        return deque(self.unpack(told["v"]), told["n"])

    def _sequence(self, told: Any, like: Any) -> Any:
        return _SEQUENCES[told["$"]](self.unpack(told["v"], like if isinstance(like, (tuple, list)) else None))

    _tuple = _set = _frozenset = _size = _sequence

    def _dict(self, told: Any, like: Any) -> dict[Any, Any]:
        return {self.unpack(k): self.unpack(v, _at(like, self.unpack(k))) for k, v in told["v"]}

    def _ordered(self, told: Any, like: Any) -> OrderedDict[Any, Any]:
        return OrderedDict(self._dict(told, like))

    def _object(self, told: Any, like: Any) -> Any:
        own = like if like is not None and _class(like) == told["class"] else None
        theirs = parts_of(own) or {}
        parts = {self.unpack(k): self.unpack(v, theirs.get(self.unpack(k))) for k, v in told["v"]}
        if own is not None:
            return with_parts(own, parts)
        if told["like"] == "object":
            return self._unstored(told, like)
        return parts if told["like"] == "mapping" else tuple(parts.values())

    def _unstored(self, told: Any, like: Any) -> Any:
        if like is not None and _class(like) == told["class"]:
            return like
        self.missing.append(told["class"])
        return NotStored(told["class"])

    def _same(self, told: Any, like: Any) -> torch.Tensor:
        return self._made[told["v"]]

    def _sparse(self, told: Any, like: Any) -> torch.Tensor:
        indices, values = (self.unpack(part) for part in told["v"])
        return torch.sparse_coo_tensor(indices, values, told["shape"], check_invariants=True).coalesce()

    def _tensor(self, told: Any, like: Any) -> torch.Tensor:
        t = self._tensors[told["key"]]
        if "dtype" in told:
            t = t.clone().view(self._dtype({"v": told["dtype"]}, None)).reshape(told["shape"])
        if "stride" in told:
            t = torch.empty_strided(t.shape, told["stride"], dtype=t.dtype).copy_(t)
        if isinstance(like, torch.Tensor):
            t = t.to(like.device)
        if told.get("grad"):
            t = t.requires_grad_()
        self._made[told["key"]] = t
        return t

    def _array(self, told: Any, like: Any) -> Any:
        raw = self._tensors[told["key"]].numpy().tobytes()
        return np.frombuffer(raw, dtype=np.dtype(told["dtype"])).reshape(told["shape"]).copy()

    def _scalar(self, told: Any, like: Any) -> Any:
        return self._array(told, like)[()]


def _at(like: Any, key: Any) -> Any:
    """The part of the program's own value that stands in this place."""
    if isinstance(like, (list, tuple)):
        return like[key] if isinstance(key, int) and key < len(like) else None
    parts = like if isinstance(like, dict) else None
    return parts.get(key) if parts is not None else None
