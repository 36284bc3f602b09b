"""A whole federation on this machine: a SuperLink, SuperNodes and a run, started and stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcfed.config.toml import toml_value
from gcfed.cpu import available_cores
from gcfed.errors import InputError
from gcfed.files import create_folder, write_text

GRACE = 10.0  # seconds that processes have to end by themselves
STARTUP = 60.0  # seconds that a SuperLink has to listen
CONNECTION = "local"
SERVER = b"flwr-serverapp"  # the program that a SuperLink starts for each run
PROGRAMS = Path(sys.executable).parent
"""Where the commands of this environment are, Flower's among them."""


@dataclass
class LocalFederation:
    """The processes of a federation, their logs and what its nodes keep, in one folder."""

    folder: Path
    threads: int = 1
    port: int = field(default_factory=lambda: _free_port())
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        create_folder(self._home, exist_ok=True)
        connection = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        write_text(self._home / "config.toml", f"[superlink.{CONNECTION}]\n{connection}")
        listen = ("--host", "127.0.0.1", "--port", str(self.port))
        fixed = "--disable-runtime-dependency-installation"
        self._start("superlink", "flower-superlink", "--insecure", *listen, fixed)
        end = time.monotonic() + STARTUP
        while not _listens(self.port):
            if self.processes["superlink"].poll() is not None or time.monotonic() > end:
                raise InputError(f"the SuperLink does not start: see {self.log('superlink')}")
            time.sleep(0.1)

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client, or start it again."""
        node = f'partition-id={client} folder="{self.folder / "nodes"}"'
        listen = ("--host", "127.0.0.1", "--port", str(_free_port()))
        link = ("--superlink", f"127.0.0.1:{self.port}", "--node-config", node)
        self._start(f"supernode-{client}", "flower-supernode", "--insecure", *link, *listen)

    def start_run(
        self, app: Path, changes: Mapping[str, Any], name: str = "run"
    ) -> "subprocess.Popen[bytes]":
        """Start a run of an app, with some settings changed; the process ends with the run."""
        assigned = [f"{key}={toml_value(value)}" for key, value in changes.items()]
        words = [word for each in assigned for word in ("--run-config", each)]
        return self._start(name, "flwr", "run", str(app), CONNECTION, "--stream", *words)

    def kill(self, name: str) -> None:
        """End a process, and the group of processes that it leads, at once."""
        process = self.processes.pop(name)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything that was started: first by asking, and servers before their nodes.

        A server that is asked ends its round, and one that is asked again ends at once; either way
        its run says that it was stopped.
        """
        for asked in (self.servers, self.servers, self.members):
            _signal_all(asked(), signal.SIGTERM)
            end = time.monotonic() + GRACE
            while asked() and time.monotonic() < end:
                time.sleep(0.1)
        _signal_all(self.members(), signal.SIGKILL)
        for name in list(self.processes):
            self.kill(name)

    def members(self) -> list[int]:
        """The processes of this federation that are alive.

        Flower detaches some of those that it starts, so they are known by what all inherit: the
        environment, where the system shows it.
        """
        mark = f"FLWR_HOME={self._home}".encode()
        found = {process.pid for process in self.processes.values() if process.poll() is None}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is somebody else's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
        return sorted(found)

    def servers(self) -> list[int]:
        """Those of the processes that serve a run."""
        return [each for each in self.members() if SERVER in _command(each)]

    @property
    def _home(self) -> Path:
        return self.folder / "flwr"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _start(self, name: str, program: str, *words: str) -> "subprocess.Popen[bytes]":
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(PROGRAMS / program), *words],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            # where Flower looks for its programs
            "PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self._home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": str(self.threads),
        }


@contextmanager
def local_federation(folder: Path, num_nodes: int) -> Iterator[LocalFederation]:
    """Inside, a SuperLink and nodes run on this machine; at the end, however it ends, none does."""
    if not (PROGRAMS / "flower-superlink").is_file():
        raise InputError("this needs Flower, which is not installed: pip install 'gcfed[flower]'")
    threads = max(1, available_cores() // num_nodes)
    made = LocalFederation(create_folder(folder, exist_ok=True), threads)
    with ExitStack() as stack:
        stack.callback(made.stop)
        made.start_link()
        for client in range(num_nodes):
            made.start_node(client)
        yield made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile, or this system does not show it
        return b""


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def _signal_all(processes: Iterable[int], number: int) -> None:
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(each, number)
