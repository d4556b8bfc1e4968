"""Alerts: runs the user's command or sends to a URL what is new. Nothing is sent unless configured."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from postmortem._version import __version__
from postmortem.core.errors import UsageError
from postmortem.core.model import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.following.news import News

_SECONDS = 30.0  # a command or a URL may take


def body(news: Sequence[News]) -> str:
    """One JSON object: `text`, which chats show, and `events`, as `--format json` prints them."""
    text = "\n".join(item.line() for item in news)
    events = [item.as_json() for item in news]
    return json.dumps({"schema_version": SCHEMA_VERSION, "postmortem": __version__, "text": text, "events": events})


@dataclass(frozen=True, slots=True)
class Command:
    """Runs a command without a shell, the body on its stdin. UsageError for one that has no words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Command:
        """From words as a shell would split them."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"--command {text}: {error}") from None
        if not words:
            raise UsageError("--command: an empty command")
        return cls(words)

    def send(self, news: Sequence[News]) -> str | None:
        """-> why it failed, in one line; None if it did not."""
        name = self.words[0]
        try:
            done = subprocess.run(
                self.words, input=body(news), text=True, stdout=subprocess.DEVNULL, timeout=_SECONDS, check=False
            )
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        except subprocess.TimeoutExpired:
            return f"{name}: did not end within {_SECONDS:.0f} s and was killed"
        return f"{name}: exit code {done.returncode}" if done.returncode else None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sends the body to a URL by POST. The URL may hold a secret: only its host is ever printed."""

    url: str

    @classmethod
    def of(cls, url: str) -> Webhook:
        """UsageError for a URL that is not http or https."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("--webhook: not a URL that begins with http:// or https:// and names a host")
        return cls(url)

    def send(self, news: Sequence[News]) -> str | None:
        """-> why it failed, in one line; None if it did not."""
        headers = {"Content-Type": "application/json", "User-Agent": f"postmortem/{__version__}"}
        host = urlsplit(self.url).hostname
        try:
            request = urllib.request.Request(self.url, body(news).encode(), headers, method="POST")
            with urllib.request.urlopen(request, timeout=_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            with error:
                return f"webhook {host}: HTTP {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            return f"webhook {host}: {getattr(reason, 'strerror', None) or type(reason).__name__}"
