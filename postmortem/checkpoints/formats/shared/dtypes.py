"""The number types of saved tensors, under torch's names; torch itself, which takes long to import, is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch


class Dtype(NamedTuple):
    """A number type: its name without "torch.", the bytes of a number, and whether it can be NaN or infinite."""

    name: str
    itemsize: int
    kind: Literal["float", "complex", "whole"] = "whole"

    @property
    def real(self) -> Dtype:
        """The type of the real and the imaginary part of a complex type; any other type itself."""
        return DTYPES[_PARTS[self.name]] if self.kind == "complex" else self


_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_BYTE_FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_SIZES = {
    "float": {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, **dict.fromkeys(_BYTE_FLOATS, 1)},
    "complex": {"complex128": 16, "complex64": 8, "complex32": 4},
    "whole": {
        **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "bool": 1,
        "qint8": 1,
        "quint8": 1,
        "qint32": 4,
        "float4_e2m1fn_x2": 1,  # two numbers in a byte, which are never NaN or infinite
    },
}
DTYPES: dict[str, Dtype] = {
    name: Dtype(name, size, kind)  # type: ignore[arg-type]
    for kind, sizes in _SIZES.items()
    for name, size in sizes.items()
}


def dtype_of(given: Dtype | torch.dtype | str) -> Dtype:
    """The type with that name, or of torch. Raises KeyError for an unknown name.

    >>> dtype_of("bfloat16")
    Dtype(name='bfloat16', itemsize=2, kind='float')
    """
    if isinstance(given, Dtype):
        return given
    name = str(given).removeprefix("torch.")
    if name in DTYPES or isinstance(given, str):
        return DTYPES[name]
    whole = name.endswith("_x2") or not (given.is_floating_point or given.is_complex)
    return Dtype(name, given.itemsize, "whole" if whole else "complex" if given.is_complex else "float")
