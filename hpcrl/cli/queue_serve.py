"""Answering Prometheus over HTTP, to whoever has the run's key."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click

from hpcrl.run.errors import CheckFailed, HpcrlError


def make_server(address: str, port: int, key: str, text: Callable[[], str]) -> ThreadingHTTPServer:
    """A server that answers ``GET /metrics`` with ``Authorization: Bearer KEY``; port 0 takes a free one.

    Raises:
        CheckFailed: the port cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, given = self.headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.strip().encode()):
                self._answer(HTTPStatus.UNAUTHORIZED, "the run's key is needed, as Authorization: Bearer\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND, "there is only /metrics\n")
            else:
                try:
                    self._answer(HTTPStatus.OK, text())
                except HpcrlError as error:
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line each."""

        def _answer(self, status: HTTPStatus, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    try:
        return ThreadingHTTPServer((address, port), Handler)
    except OSError as error:
        raise CheckFailed(
            [f"{address}:{port} cannot be bound: {error.strerror}; choose another --serve or --address"]
        ) from error


def serve(address: str, port: int, key: str, text: Callable[[], str]) -> None:
    """Answer until Ctrl-C."""
    with make_server(address, port, key, text) as server:
        click.echo(f"http://{address}:{server.server_port}/metrics, with the run's key as bearer token; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
