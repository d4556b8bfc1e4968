"""``postmortem serve``: the state of one run over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, PATH
from postmortem.core.config import load_config
from postmortem.core.errors import NotFoundError, PostmortemError

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings=CONTEXT)
@click.argument("run", type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port.  [default: any free port]")
def serve(run: Path, host: str, port: int) -> int:
    """Serve the state of a growing RUN over HTTP, as a page and as JSON: verdict, findings, last values.

    The URL with its token is printed; requests without the token are refused. GET / is the page, GET /summary the same
    as JSON. For a training under `postmortem run` or `postmortem.watch(level=…)`, POST /level sets what is measured and
    POST /history/clear deletes its history. Nothing else can be changed. Ctrl-C stops the server.
    """
    if not run.exists():
        raise NotFoundError(f"no such file or folder: {run}")
    from postmortem.following.server import Server, is_loopback
    from postmortem.following.service import Service

    service = Service(run, load_config())
    try:
        server = Server(service, host, port)
    except (OSError, OverflowError) as error:
        raise PostmortemError(f"{host}:{port}: {getattr(error, 'strerror', None) or error}") from error
    with server:
        if not is_loopback(host):
            click.echo("postmortem: other machines can reach this address; the traffic is not encrypted", err=True)
        click.echo(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("postmortem: ended", err=True)
    return 0
