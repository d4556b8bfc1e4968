"""Unpickles the structure of a saved state without torch, where it names nothing but tensors and plain data.

That is the rule for what training code saves. Importing torch takes longer than all else that a scan does; it is left
for the rest: `NotPlain` is raised there, and torch's restricted unpickler says what the file holds or what is wrong.
"""

from __future__ import annotations

import collections
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.checkpoints.formats.shared.dtypes import DTYPES, Dtype
from postmortem.checkpoints.formats.shared.restricted_pickle import plain_classes
from postmortem.checkpoints.formats.shared.zip_records import check_records

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from postmortem.checkpoints.formats.shared.restricted_pickle import Pickle
    from postmortem.checkpoints.formats.shared.zip_records import Part


class NotPlain(Exception):
    """The pickle requires more than tensors and plain data, or is damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedTensor:
    """A tensor whose bytes were not read: the key of its storage, and its place there in numbers of its `dtype`."""

    storage: Hashable
    dtype: Dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_meta: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    key: str
    dtype: Dtype
    nbytes: int


_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}  # fmt: skip
_MODULES = {"__builtin__": "builtins"}  # as protocol 2 writes them
# those that torch's restricted unpickler follows
_OPCODES = (
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID", "NONE", "NEWFALSE", "NEWTRUE"),
    *("BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE", "SHORT_BINSTRING", "BINPUT", "LONG_BINPUT"),
    *("BINGET", "LONG_BINGET", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_SET"),
)


class PlainStorages:
    """The storages that a pickle names: the bytes that it claims for each, by the key of its record."""

    def __init__(self) -> None:
        self.nbytes: dict[str, int] = {}

    @property
    def keys(self) -> Collection[str]:
        """The keys of the storages."""
        return self.nbytes.keys()

    def unpickle(self, f: Pickle, *, trust: bool = False) -> Any:
        """The next pickle in `f`. Raises NotPlain, or any exception if it is damaged."""
        return _Unpickler(f, self).load()

    def load(self, saved_id: Any) -> _Storage:
        """A storage, from ("storage", its class, key, device, number of elements)."""
        word, dtype, key, _, numel, *rest = saved_id
        if word != "storage" or rest or not isinstance(dtype, Dtype) or type(numel) is not int or numel < 0:
            raise NotPlain("storage")
        nbytes = self.nbytes.setdefault(str(key), numel * dtype.itemsize)
        if nbytes != numel * dtype.itemsize:
            raise NotPlain("a storage of two sizes")
        return _Storage(str(key), dtype, nbytes)

    def places(self, offsets: dict[str, int]) -> Mapping[Hashable, int]:
        """The offset of each storage, by `SavedTensor.storage`."""
        return dict(offsets.items())

    def check_records(self, archive: zipfile.ZipFile, part: Part) -> None:
        """Raises ValueError if torch would not read the archive."""
        check_records(archive, part)


class _Unpickler(pickle._Unpickler):
    """Makes a `SavedTensor` of each tensor. It is Python's own unpickler: that in C reserves what an index claims."""

    def __init__(self, f: Pickle, storages: PlainStorages) -> None:
        super().__init__(f, encoding="utf-8")
        self._file_read = f.counted(self)
        self.persistent_load = storages.load  # type: ignore[assignment]
        self._plain: dict[str, Any] = {
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._typed_tensor,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch.Size": tuple,
            "torch.device": self._device,
            "torch.storage.UntypedStorage": DTYPES["uint8"],
            "collections.OrderedDict": collections.OrderedDict,
            "_codecs.encode": self._encoded,
            **{f"torch.{kind}Storage": DTYPES[name] for kind, name in _STORAGES.items()},
            **{f"torch.{name}": dtype for name, dtype in DTYPES.items()},
            **plain_classes(),
        }

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a class or function of the pickle."""
        found = self._plain.get(f"{_MODULES.get(module, module)}.{name}")
        if found is None:
            raise NotPlain(f"{module}.{name}")
        return found

    def _tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> SavedTensor:
        return _fitting(storage, storage.dtype, offset, shape, stride)

    def _typed_tensor(
        self, storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
    ) -> SavedTensor:
        return _fitting(storage, dtype, offset, shape, stride)

    def _parameter(self, data: Any, *_: Any) -> Any:
        return data

    def _device(self, *where: Any) -> str:
        return ":".join(map(str, where))

    def _encoded(self, text: str, encoding: str) -> bytes:
        return text.encode("latin1" if encoding == "latin1" else "ascii")

    def _build(self) -> None:
        built = self.stack[-2]  # type: ignore[attr-defined]
        if isinstance(built, type) or callable(built):  # a pickle may not change what other pickles use
            raise NotPlain("state of a class")
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]

    dispatch: ClassVar[dict[int, Any]] = {
        **{op: pickle._Unpickler.dispatch[op] for op in (getattr(pickle, name)[0] for name in _OPCODES)},
        pickle.BUILD[0]: _build,
    }


def _fitting(storage: Any, dtype: Any, offset: Any, shape: Any, stride: Any) -> SavedTensor:
    """The tensor, if it lies within its storage."""
    if not isinstance(storage, _Storage) or not isinstance(dtype, Dtype) or not _sizes((offset,), shape, stride):
        raise NotPlain("tensor")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else offset - 1
    if (last + 1) * dtype.itemsize > storage.nbytes:
        raise NotPlain("a tensor that exceeds its storage")
    return SavedTensor(storage.key, dtype, offset, tuple(shape), tuple(stride))


def _sizes(*numbers: Sequence[Any]) -> bool:
    return all(isinstance(each, tuple) and all(type(n) is int and n >= 0 for n in each) for each in numbers)
