"""A session with Ray: a cluster that is joined, or one that is started on this machine."""

import os
import socket
import warnings
from typing import Any, Self

from gcfed.cpu import available_cores
from gcfed.errors import InputError

PATIENCE = 10.0  # seconds for a machine to answer


def require_ray() -> Any:
    """The module ``ray``, which is an extra of the package."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install 'gcfed[ray]'") from None
    return ray


class RaySession:
    """Ray, for as long as it is needed; a session that was there before stays open.

    ``address`` names a cluster; without it, the one that the variable RAY_ADDRESS names is joined.
    If there is none either, Ray is started on this machine, with room for at least ``num_cpus``
    workers of one core, and ends with the session.
    """

    def __init__(self, address: str | None = None, num_cpus: int = 1) -> None:
        self.ray = require_ray()
        self._is_ours = not self.ray.is_initialized()
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address}
        if address == "local":
            options |= {"num_cpus": max(available_cores(), num_cpus), "include_dashboard": False}
        if self._is_ours:
            _check_listening(address)
            self._join(options)

    def _join(self, options: dict[str, Any]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's own, of what its next versions will do
                self.ray.init(**options, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _unreachable(options["address"], error) from None

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._is_ours:
            self.ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_listening(address: str) -> None:
    """Refuse an address where nobody listens, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> InputError:
    why = str(error).strip().split("\n")[0]
    return InputError(f"there is no Ray at {address!r}: {why}; start one with ray start --head")
