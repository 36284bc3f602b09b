"""Downloads that go on where an earlier one was cut, and show how far they are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pooch  # type: ignore[import-untyped]
import requests
import urllib3

from gcfed.data.downloads.catalog import Download
from gcfed.data.downloads.formats import md5_of_file
from gcfed.errors import InputError
from gcfed.progress import progress as shown

TIMEOUT = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes of one."""

_CHUNK = 1 << 16

_may_fetch: ContextVar[bool] = ContextVar("may_fetch", default=True)


@contextmanager
def offline() -> Iterator[None]:
    """Inside, nothing is fetched: data that are not on this machine are an `InputError`."""
    token = _may_fetch.set(False)
    try:
        yield
    finally:
        _may_fetch.reset(token)


def download(source: Download, root: Path, *, progress: bool) -> Path:
    """Fetch a source into the folder of data; one that is there already is verified.

    A file appears under its name only when its md5 is the published one.  A download that was cut
    leaves a ``.part`` beside it, from which the next one goes on.
    """
    target, failures = root / source.file, []
    if target.exists():
        if md5_of_file(target) != source.md5:
            raise InputError(f"{target} is not the published file (wrong md5): move it away")
        return target
    if os.environ.get("GCFED_OFFLINE", "0") not in ("", "0"):
        raise InputError("GCFED_OFFLINE is set, so nothing is fetched")
    if not _may_fetch.get():
        raise InputError(f"{source.file} is not on this machine")
    for url in source.urls:
        try:
            _retrieve(url, source, target, progress)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            failures.append(f"{url}: {_reason(error)}")
        else:
            return target
    raise InputError(f"{source.file} could not be fetched. {'. '.join(failures)}")


def _retrieve(url: str, source: Download, target: Path, progress: bool) -> None:
    """Have pooch download, verify and put in place, without the lines it logs."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            f"md5:{source.md5}",
            target.name,
            target.parent,
            downloader=_Resuming(source, target.with_name(f"{target.name}.part"), progress),
        )
    finally:
        logger.setLevel(level)


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.ConnectionError):
        return f"no connection ({type(error).__name__})"
    if isinstance(error, urllib3.exceptions.HTTPError):
        return "the connection was cut; fetch again to go on from there"
    if isinstance(error, requests.RequestException | InputError):
        return str(error)
    return "what came is not the published file (wrong md5), and was not kept"


class _Resuming:
    """What pooch calls to download: it appends to a partial file, and hands it over when whole."""

    def __init__(self, source: Download, part: Path, progress: bool) -> None:
        self.source, self.part, self.progress = source, part, progress

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        done = self.part.stat().st_size if self.part.exists() else 0
        if not done or not self._is_whole():
            with self._request(url, done) as response:
                self._append(response, _start(response, done))
        self.part.replace(output_file)

    def _is_whole(self) -> bool:
        return md5_of_file(self.part) == self.source.md5

    def _request(self, url: str, done: int) -> requests.Response:
        # Identity: the md5 is of the file as it is stored, which some servers would unpack.
        headers = {"Accept-Encoding": "identity", "User-Agent": "gcfed"}
        if 0 < done < self.source.size:
            headers["Range"] = f"bytes={done}-"
        response = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        if done and response.status_code == requests.codes.requested_range_not_satisfiable:
            response.close()
            return self._request(url, 0)
        if not response.ok:
            response.close()
        response.raise_for_status()
        return response

    def _append(self, response: requests.Response, done: int) -> None:
        """Write what the server sends after the first ``done`` bytes, if that is not far too much.

        Of a server that does not say how much it sends, what is short was cut unless the md5 holds.
        """
        announced = response.headers.get("Content-Length")
        total = self.source.size if announced is None else done + int(announced)
        self._refuse_endless(total)
        with (
            self.part.open("ab" if done else "wb") as file,
            shown(self.source.file, total, unit="byte", quiet=not self.progress) as tick,
        ):
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                self._refuse_endless(done + len(chunk))
                done += file.write(chunk)
                tick(done, "")
        if done < total and not self._is_whole():
            raise urllib3.exceptions.ProtocolError("cut")

    def _refuse_endless(self, size: int) -> None:
        if size > 2 * self.source.size:
            self.part.unlink(missing_ok=True)
            raise InputError(f"{size:,} bytes are offered instead of {self.source.size:,}")


def _start(response: requests.Response, done: int) -> int:
    """Where in the file the answer begins: where it was asked to, or at 0 if it is the whole."""
    start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    resumed = response.status_code == requests.codes.partial_content and start == str(done)
    return done if resumed else 0
