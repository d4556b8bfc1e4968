"""Runs of a scan that are read and judged elsewhere: by a Dask cluster, or any executor of `concurrent.futures`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from postmortem.core.errors import MissingExtra, PostmortemError, UsageError, described

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    from postmortem.runs.workers import Item, Result, Work

_DASK = "dask://"
_CONNECT_SECONDS = 10


@contextmanager
def executor_at(address: str) -> Iterator[Executor]:
    """The executor of an existing Dask cluster, ``dask://HOST:PORT`` of its scheduler.

    UsageError for an address of another form, MissingExtra without the package, PostmortemError if nothing answers.
    """
    host, _, port = address.removeprefix(_DASK).rpartition(":")
    if not address.startswith(_DASK) or not host or not port.isdigit():
        raise UsageError(f"not the address of an executor: {address} (dask://HOST:PORT)")
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra(address, "dask") from error
    connect: Any = Client  # has no types
    try:
        client = connect(f"tcp://{host}:{port}", timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:  # a refused connection, a time-out, a name that does not resolve
        raise PostmortemError(f"{address}: no Dask scheduler answers: {described(error)}") from error
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise PostmortemError(f"{address}: this cluster has no workers")
        yield cast("Executor", client.get_executor())


def results_of(executor: Executor, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
    """(index, result) of each item as it is done. Raises what the work raises.

    An item whose worker died, or that never reached one, costs only itself: its result is what `work.lost` makes.
    """
    from concurrent.futures import CancelledError, as_completed

    futures: dict[Future[tuple[str, Any]], int] = {}
    try:
        for index, item in enumerate(items):
            futures[executor.submit(_done, work, item)] = index
        for future in as_completed(futures):
            index = futures[future]
            try:
                kind, value = future.result()
            except (Exception, CancelledError) as error:  # noqa: BLE001 - of the executor, whichever it is
                yield index, work.lost(items[index], f"the process that read it failed: {described(error)}")
                continue
            if kind == "error":
                raise value
            yield index, value
    finally:
        for future in futures:
            future.cancel()


def _done(work: Work[Item, Result], item: Item) -> tuple[str, Any]:
    """Runs there: what the work raises is told apart from what the executor raises."""
    try:
        return "done", work(item)
    except Exception as error:  # noqa: BLE001 - raised where the results are asked for
        return "error", error
