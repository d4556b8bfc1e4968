"""What torch makes of the pickles of a saved state, with its tensors on the meta device: no weights are loaded."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import _weights_only_unpickler as restricted

from postmortem.checkpoints.formats.shared.dtypes import dtype_of
from postmortem.checkpoints.formats.shared.plain_pickle import SavedTensor
from postmortem.checkpoints.formats.shared.restricted_pickle import Pickle, Trusting, safe_globals

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Collection, Hashable

    from postmortem.checkpoints.formats.shared.zip_records import Part

WHOLE = (torch.nn.Module, torch.optim.Optimizer)  # some scripts save the objects instead of their state


class Storages:
    """Replaces the storages of a pickle: meta storages, each with the key of its record."""

    def __init__(self) -> None:
        self.made: dict[str, torch.TypedStorage] = {}
        self.itemsize: dict[str, int] = {}

    @property
    def keys(self) -> Collection[str]:
        """The keys of the storages."""
        return self.made.keys()

    def load(self, saved_id: tuple[Any, ...]) -> Any:
        """The `persistent_load` of an unpickler."""
        _, kind, key, _, numel, *_ = saved_id
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        if str(key) not in self.made:
            size = self.itemsize[str(key)] = dtype.itemsize
            untyped = torch.UntypedStorage(int(numel) * size, device="meta")  # type: ignore[no-untyped-call]
            made = torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
            self.made[str(key)] = made
        return self.made[str(key)]

    def unpickle(self, f: Pickle, *, trust: bool = False) -> Any:
        """The next pickle in `f`, by torch's restricted unpickler; with `trust` by one that imports everything."""
        unpickler: Any = Trusting(f, encoding="utf-8") if trust else restricted.Unpickler(f, encoding="utf-8")
        unpickler.persistent_load = self.load
        if not trust:
            unpickler.read = f.counted(unpickler)
        with safe_globals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: the error reports what cannot be read
            return unpickler.load()

    def places(self, offsets: dict[str, int]) -> dict[Hashable, int]:
        """The offset in the file of each storage, by its `_cdata`; `offsets` has them by key."""
        return {s._untyped_storage._cdata: offsets[key] for key, s in self.made.items() if key in offsets}

    def check_records(self, archive: zipfile.ZipFile, part: Part) -> None:
        """Reads the directory of the archive as torch.load does: Python's reader accepts more files."""
        part.seek(0)
        strict: Any = torch._C.PyTorchFileReader
        strict(part).get_all_records()


def saved(value: Any) -> Any:
    """A tensor on the meta device as a `SavedTensor`, a whole model or optimizer as its state, others unchanged."""
    if isinstance(value, WHOLE):
        return value.state_dict()
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_sparse:
        value = value._values()  # values() refuses a tensor that is not coalesced
    elif value.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        value = value.values()
    place = value.untyped_storage()._cdata, dtype_of(value.dtype), int(value.storage_offset())
    return SavedTensor(*place, tuple(value.shape), tuple(value.stride()))
