"""Experiment trackers in a forked copy: what it logs does not reach the run of the user.

The client of W&B notices that it is in another process, and would ask its server to be let in, for which it needs
threads that a copy does not have.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from postmortem.attach.boundaries.channels import way_of
from postmortem.attach.boundaries.current import listener


def cut_off_trackers() -> None:
    """From now on calls of the W&B client in this process are not sent. Those that wait for an answer still fail."""
    wandb: Any = sys.modules.get("wandb")
    interface: Any = sys.modules.get("wandb.sdk.interface.interface_sock")
    if wandb is None or interface is None:
        return
    wandb._attach = _nothing
    interface.InterfaceSock._publish = _not_sent


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _not_sent(client: Any, record: Any, *_: Any, nowait: bool = False, **__: Any) -> None:
    if not nowait:  # the program has waited for a future here, which is counted
        listener.observer.receive(way_of(Future, "result"), client, lambda: None)
