"""The command that makes the certificates and keys of a federation."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import path_argument
from gcfed.files import quoted


def certs(
    folder: Annotated[Path, path_argument("DIR")],
    nodes: Annotated[int, typer.Option(metavar="N", help="A key for each of so many nodes.")] = 4,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address under which nodes reach the server, beside localhost; may be "
            "repeated."
        ),
    ] = None,
) -> None:
    """Make certificates for the server of a federation, and a key for each of its nodes.

    DIR is a new folder; nothing is overwritten.  Its files can be read by their owner alone.  Each
    node gets ca.crt and the .key of its own; all else stays with the server, and ca.key better in a
    safe.  Certificates are good for a year.

    Example:

        gcfed deploy certs certificates --nodes 8 --host fl.example.org
    """
    from gcfed.deploy.certificates import write_certificates

    written = write_certificates(folder, nodes, host or ())
    server, here = host[0] if host else "localhost", quoted(folder)
    console.tell(f"{folder} has {len(written)} files.  The server is started by")
    console.tell(
        f"  flower-superlink --ssl-ca-certfile {here}/ca.crt --ssl-certfile {here}/server.crt "
        f"--ssl-keyfile {here}/server.key --enable-supernode-auth --host 0.0.0.0"
    )
    console.tell(
        f"and told of each node, over a connection whose root-certificates is {folder}/ca.crt"
    )
    console.tell(f"  flwr supernode register {here}/node-0.pub CONNECTION")
    console.tell("which is then started by")
    console.tell(
        f"  flower-supernode --superlink {server}:8000 --root-certificates ca.crt "
        "--auth-supernode-private-key node-0.key"
    )
