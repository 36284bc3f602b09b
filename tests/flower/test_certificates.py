"""A federation with certificates: who has a registered key and trusts the server's is let in."""

import os
import socket
import ssl
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from gcfed import InputError
from gcfed.deploy.certificates import write_certificates

pytestmark = pytest.mark.flower

PROGRAMS = Path(sys.executable).parent
PATIENCE = 120  # seconds, of a machine that is busy


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Those of a federation of two nodes."""
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    write_certificates(folder, 2, ["fl.example.org", "10.1.2.3"])
    return folder


def test_all_files_are_for_their_owner_alone(certificates):
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()}
    nodes = ["node-0.key", "node-0.pub", "node-1.key", "node-1.pub"]
    assert files == dict.fromkeys(["ca.crt", "ca.key", "server.crt", "server.key", *nodes], 0o600)


def test_nothing_is_overwritten(certificates):
    before = (certificates / "ca.key").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        write_certificates(certificates, 2)
    assert (certificates / "ca.key").read_bytes() == before


@pytest.mark.parametrize(
    ("nodes", "hosts", "said"),
    [(0, [], "at least one node; not 0"), (1, ["é.org"], "a host is a name such as")],
)
def test_what_is_refused_leaves_nothing(nodes, hosts, said, tmp_path):
    with pytest.raises(InputError, match=said):
        write_certificates(tmp_path / "new", nodes, hosts)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "fl.example.org", "10.1.2.3"])
def test_for_which_hosts_the_server_is_trusted(certificates, host):
    shake_hands(certificates, host)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"elsewhere\.org"):
        shake_hands(certificates, "elsewhere.org")


def shake_hands(certificates, host):
    """A handshake within this process, as strict as Python can be."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    client = ssl.create_default_context(cafile=certificates / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = client.wrap_bio(down, up, server_hostname=host)
    called = server.wrap_bio(up, down, server_side=True)
    for end in (calling, called, calling):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert calling.version() == "TLSv1.3"


class Federation:
    """A SuperLink on this machine, with TLS and a list of nodes, and the nodes that try it."""

    def __init__(self, folder, certificates):
        self.folder, self.certificates, self.port = folder, certificates, free_port()
        self.processes = []
        own = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.environment = {**os.environ, "PATH": own, "FLWR_HOME": str(folder), **quiet}
        (folder / "config.toml").write_text(
            f'[superlink.local]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{certificates / "ca.crt"}"\n'
        )

    def start_link(self):
        paths = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        words = [f"--ssl-{key}={self.certificates / name}" for key, name in paths.items()]
        words += ["--enable-supernode-auth", "--host=127.0.0.1", f"--port={self.port}"]
        self.start("link", "flower-superlink", *words)
        self.wait_for("link", "Uvicorn running on https")

    def register(self, node):
        words = ["supernode", "register", str(self.certificates / f"{node}.pub"), "local"]
        subprocess.run(
            [PROGRAMS / "flwr", *words], check=True, env=self.environment, timeout=PATIENCE
        )

    def start_node(self, name, key, authority):
        words = [f"--superlink=127.0.0.1:{self.port}", f"--root-certificates={authority}"]
        words += [f"--auth-supernode-private-key={key}", f"--port={free_port()}"]
        self.start(name, "flower-supernode", *words, "--max-retries=1")

    def start(self, name, program, *words):
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [PROGRAMS / program, *words],
                    env=self.environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def wait_for(self, name, text):
        """Wait until a log has this text."""
        log, end = self.folder / f"{name}.log", time.monotonic() + PATIENCE
        while text not in log.read_text():
            assert time.monotonic() < end, f"no {text!r} in\n{log.read_text()}"
            time.sleep(0.2)

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def federation(folder, certificates):
    made = Federation(folder, certificates)
    try:
        made.start_link()
        yield made
    finally:
        made.stop()


def test_who_is_let_in(certificates, tmp_path):
    others = tmp_path / "others"
    write_certificates(others, 1)
    with federation(tmp_path, certificates) as made:
        made.register("node-0")
        authority = certificates / "ca.crt"
        made.start_node("registered", certificates / "node-0.key", authority)
        made.start_node("stranger", certificates / "node-1.key", authority)
        made.start_node("deceived", certificates / "node-0.key", others / "ca.crt")
        made.wait_for("registered", "SuperNode ID: ")
        made.wait_for("link", "No SuperNode found with the given public key")
        made.wait_for("stranger", "Failed to activate SuperNode")
        made.wait_for("deceived", "certificate verify failed")
        assert "SuperNode ID: " not in (tmp_path / "stranger.log").read_text()
        assert "SuperNode ID: " not in (tmp_path / "deceived.log").read_text()


def test_the_command_says_how_to_go_on(tmp_path):
    gcfed = [sys.executable, "-m", "gcfed", "deploy", "certs", "secrets", "--nodes", "3"]
    answer = subprocess.run(gcfed, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--enable-supernode-auth" in answer.stdout
    assert len(list((tmp_path / "secrets").glob("node-*.key"))) == 3
    again = subprocess.run(gcfed, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 2 and "secrets exists already" in again.stderr
