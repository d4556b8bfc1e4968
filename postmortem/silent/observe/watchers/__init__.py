"""One file per observed subject: a subclass of `Watcher`, registered by ``@watcher``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from postmortem.silent.observe.watcher import Watcher

WATCHERS: Registry[type[Watcher]] = Registry(
    "postmortem.silent.observe.watchers", key=lambda w: w.__name__, order=lambda w: w.order, noun="watcher"
)
watcher = WATCHERS.register
