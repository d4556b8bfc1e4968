"""Distinct values of arrays. `np.unique` and what it is used by load numpy.ma, which takes as long as all detectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

_MANY = 1024


def distinct(values: NDArray[T]) -> NDArray[T]:
    """The distinct values in ascending order, NaN once and last.

    >>> distinct(np.array([3, 1, 3, 2, 1]))
    array([1, 2, 3])
    """
    if values.size > _MANY and (values == values.flat[0]).all():  # a column of one number need not be sorted
        return values.flat[:1].copy()
    ordered = np.sort(values, axis=None)
    if not len(ordered):
        return ordered
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if ordered.dtype.kind == "f" and np.isnan(ordered[-1]):
        first[np.searchsorted(ordered, np.nan) + 1 :] = False
    found: NDArray[T] = ordered[first]
    return found


def occurrences(values: NDArray[T]) -> tuple[NDArray[T], NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values in ascending order, where each occurs first, and how often; NaN is not expected.

    >>> occurrences(np.array([3, 1, 3, 2, 1]))
    (array([1, 2, 3]), array([1, 3, 0]), array([2, 1, 2]))
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    return ordered[starts], order[starts], np.diff(np.append(starts, len(ordered)))


def without(values: NDArray[T], left_out: NDArray[Any] | Sequence[int]) -> NDArray[T]:
    """The distinct values, in ascending order, that are not among `left_out`.

    >>> without(np.array([3, 1, 2]), np.array([2, 7]))
    array([1, 3])
    """
    own = distinct(values)
    return own[~np.isin(own, left_out)]
