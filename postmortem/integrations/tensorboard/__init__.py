"""The tab "Postmortem" in TensorBoard: the entry point `tensorboard_plugins` of the package.

TensorBoard imports this module when it starts and has no guard around that: nothing here is imported that can fail,
and the scan runs in a process of its own.
"""

from __future__ import annotations

from typing import Any

from tensorboard.plugins import base_plugin


class PostmortemLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Makes the plugin. TensorBoard goes on without it if that raises."""

    def load(self, context: Any) -> Any:
        """The plugin for a `base_plugin.TBContext`."""
        from postmortem.integrations.tensorboard.plugin import PostmortemPlugin

        return PostmortemPlugin(context)
