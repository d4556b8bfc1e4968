"""The tab's server side: findings as JSON, the HTML report, and the script that shows both."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from postmortem.integrations.tensorboard.scanner import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"\n]+)">')


class PostmortemPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """A tab with the findings of all runs below the log folder, each linked to its step in the report's charts."""

    plugin_name = "postmortem"

    def __init__(self, context: Any) -> None:
        """`context`: a `base_plugin.TBContext`. Nothing is read until the tab is opened."""
        spec = getattr(getattr(context, "flags", None), "logdir_spec", "") or ""
        self._scanner = Scanner(context.logdir or "", spec)

    def get_plugin_apps(self) -> Mapping[str, Callable[..., Any]]:
        """The routes below ``data/plugin/postmortem``."""
        routes = {"/index.js": self._script, "/findings": self._findings, "/page": self._page}
        return {route: wrappers.Request.application(answer) for route, answer in routes.items()}

    def is_active(self) -> bool:
        """Always: a log folder without findings is worth knowing."""
        return True

    def frontend_metadata(self) -> Any:
        """The name of the tab and its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Postmortem", disable_reload=True)

    def _script(self, request: wrappers.Request) -> wrappers.Response:
        text = (files("postmortem.integrations.tensorboard") / "index.js").read_text("utf-8")
        return _response(text, "application/javascript")

    def _findings(self, request: wrappers.Request) -> wrappers.Response:
        self._scanner.want(again="again" in request.args)
        return _response(json.dumps(self._scanner.state(), allow_nan=False), "application/json")

    def _page(self, request: wrappers.Request) -> wrappers.Response:
        page = self._scanner.page()
        return _response(page or "not scanned yet", "text/html" if page else "text/plain", 200 if page else 404)


def _response(text: str, kind: str, status: int = 200) -> wrappers.Response:
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if policy := _POLICY.search(text) if kind == "text/html" else None:
        headers["Content-Security-Policy"] = policy[1]  # TensorBoard wants it as a header, too
    return wrappers.Response(text, status=status, content_type=f"{kind}; charset=utf-8", headers=headers)
