"""The HTTP server of `postmortem serve`: fixed routes, a token, and no path of a URL that reaches the file system."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

from postmortem.core.errors import PostmortemError, UsageError
from postmortem.following.page import page
from postmortem.following.service import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.following.service import Service

_LONGEST = 4096  # bytes of a request's body
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves one run at (host, port). `url` has the token without which nothing is answered. OSError if it cannot."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, service: Service, host: str, port: int, token: str | None = None) -> None:
        self.service, self.token, self.host = service, token or secrets.token_urlsafe(24), host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As the standard library's, but asks no name server for our name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is, with the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/?token={self.token}"

    def knows(self, host: str) -> bool:
        """Whether a request's Host is an address, or a name of ours: a page elsewhere may give its own name our
        address, but cannot make a browser send another name than its own."""
        name = urlsplit(f"//{host}").hostname or ""
        if is_loopback(name) or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news; anything else is one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"postmortem: a request failed: {type(error).__name__}: {error}", file=sys.stderr)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "postmortem", ""
    timeout = 10.0  # a client that sends nothing

    def do_GET(self) -> None:
        """Page, summary, level."""
        self._answer({"/": self._page, "/summary": self._summary, "/level": self._level}, {})

    def do_HEAD(self) -> None:
        """As GET, without a body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Changes the level, clears the history."""
        body = self._body()
        if body is not None:
            self._answer({"/level": self._set_level, "/history/clear": self._clear}, body)

    @property
    def _served(self) -> Server:
        return cast("Server", self.server)

    def _answer(self, routes: dict[str, Callable[[dict[str, str]], None]], body: dict[str, str]) -> None:
        try:
            parts = urlsplit(self.path)
            asked = {**{k: v[-1] for k, v in parse_qs(parts.query).items()}, **body}
            if not self._served.knows(self.headers.get("Host", "")):
                self._say(HTTPStatus.MISDIRECTED_REQUEST, "this Host is not served here")
            elif not self._allowed(asked):
                self._say(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: it is in the URL that serve printed")
            elif parts.path in routes:
                routes[parts.path](asked)
            else:
                known = parts.path in ("/", "/summary", "/level", "/history/clear")
                code = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
                self._say(code, "GET /, /summary, /level; POST /level, /history/clear")
        except Refused as error:
            self._say(HTTPStatus.CONFLICT, str(error))
        except UsageError as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))
        except PostmortemError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except ValueError:  # a URL or a Host that is none
            self._say(HTTPStatus.BAD_REQUEST, "not a URL")

    def _allowed(self, asked: dict[str, str]) -> bool:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        token = given.strip() if kind.lower() == "bearer" else asked.get("token", "")
        return hmac.compare_digest(token.encode(), self._served.token.encode())

    def _body(self) -> dict[str, str] | None:
        """The fields of a form or of a JSON object; None where an answer was given already."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _LONGEST:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of at most {_LONGEST} bytes, with its length")
            return None
        text = self.rfile.read(int(length)).decode(errors="replace")
        if self.headers.get_content_type() == "application/json":
            try:
                fields = json.loads(text or "{}")
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                self._say(HTTPStatus.BAD_REQUEST, "not a JSON object")
                return None
            return {str(k): str(v) for k, v in fields.items()}
        return {k: v[-1] for k, v in parse_qs(text).items()}

    # ---- what can be asked for

    def _page(self, asked: dict[str, str]) -> None:
        service, token = self._served.service, self._served.token
        report, summary = service.report(), service.summary()
        text = page(report, service.last, summary["level"], summary["history"], token)
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", text)

    def _summary(self, asked: dict[str, str]) -> None:
        self._json(self._served.service.summary())

    def _level(self, asked: dict[str, str]) -> None:
        self._served.service.report()  # a history may have begun since
        self._json(self._served.service.level())

    def _set_level(self, asked: dict[str, str]) -> None:
        self._served.service.report()
        self._done(self._served.service.set_level(asked.get("level", "")))

    def _clear(self, asked: dict[str, str]) -> None:
        self._done(self._served.service.clear())

    # ---- how it is answered

    def _done(self, document: dict[str, Any]) -> None:
        """JSON; a browser that sent the form of the page goes back to it."""
        if "text/html" in self.headers.get("Accept", ""):
            self._send(HTTPStatus.SEE_OTHER, "text/plain", "", Location=f"/?token={self._served.token}")
        else:
            self._json(document)

    def _json(self, document: dict[str, Any]) -> None:
        self._send(HTTPStatus.OK, "application/json", json.dumps(document, indent=2, allow_nan=False) + "\n")

    def _say(self, code: HTTPStatus, text: str) -> None:
        self._send(code, "text/plain; charset=utf-8", text + "\n")

    def _send(self, code: HTTPStatus, kind: str, text: str, **headers: str) -> None:
        data = text.encode(errors="replace")
        self.send_response(code)
        sent = {"Content-Type": kind, "Content-Length": str(len(data)), **_HEADERS, **headers}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line would show the token."""
