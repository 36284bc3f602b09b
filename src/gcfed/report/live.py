"""A report of runs that go on: shown on this machine alone, and made again when they change."""

import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from gcfed.errors import InputError
from gcfed.report.contents import Contents
from gcfed.report.page import render_contents, render_page
from gcfed.results.directory import stamp

HOST = "127.0.0.1"
"""Where the report is shown: no other machine can see it."""

REFRESH = 5.0
"""Seconds after which a page asks for what is new."""


class ReportServer(ThreadingHTTPServer):
    """Answers with the report of what lies at ``paths``, which ``gather`` makes.

    There are two addresses and no files: the page, and what changes of it.
    """

    daemon_threads = True

    def __init__(
        self,
        paths: Sequence[Path],
        gather: Callable[[], Contents],
        port: int,
        refresh: float = REFRESH,
    ) -> None:
        self.paths, self.gather, self.refresh = paths, gather, refresh
        self.lock = threading.Lock()
        self.made: tuple[str, Contents | str] | None = None
        try:
            super().__init__((HOST, port), ReportHandler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {port} cannot be used ({error}): name another by --port, or 0 for any"
            ) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def stamp(self) -> str:
        """Changes when a run does."""
        return " ".join(map(stamp, self.paths))

    def current(self) -> tuple[str, Contents | str]:
        """What there is to say now, or why there is nothing, and the stamp of its runs."""
        with self.lock:
            now = self.stamp()
            if self.made is None or self.made[0] != now:
                self.made = now, self._said()
            return self.made

    def _said(self) -> Contents | str:
        try:
            return self.gather()
        except InputError as error:  # a sweep may only be about to begin
            return f"There is nothing to show yet: {error}"


class ReportHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ReportServer

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if not self._is_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "This report is shown on this machine alone")
        elif asked.path == "/":
            now, said = self.server.current()
            self._answer(render_page(said, refresh=self.server.refresh, stamp=now), now)
        elif asked.path == "/contents":
            self._answer_contents(parse_qs(asked.query).get("since", [""])[0])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""

    def _is_for_us(self) -> bool:
        """Whether a browser was told this address, and not a name that only leads here."""
        port = self.server.server_port
        return self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")

    def _answer_contents(self, since: str) -> None:
        if since == self.server.stamp():
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
            return
        now, said = self.server.current()
        self._answer(render_contents(said), now)

    def _answer(self, text: str, stamp: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Stamp", stamp)
        self.end_headers()
        self.wfile.write(body)
