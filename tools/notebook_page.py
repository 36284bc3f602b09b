"""A notebook, executed, as Markdown: a page of the documentation."""

import html
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

SECONDS = 600  # a cell that takes longer hangs


def render(path: Path, *, execute: bool = True) -> str:
    """The cells of a notebook and what they put out; a cell that fails is an error."""
    notebook = nbformat.read(path, as_version=4)
    if execute:
        with TemporaryDirectory() as folder:  # where the notebook writes its runs
            place = {"metadata": {"path": folder}}
            kernel = AsyncKernelManager(transport="ipc", ip=f"{folder}/socket")  # opens no port
            NotebookClient(notebook, km=kernel, timeout=SECONDS, resources=place).execute(
                cleanup_kc=True
            )
    return "\n\n".join(_cell(cell) for cell in notebook.cells)


def _cell(cell: nbformat.NotebookNode) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    shown = [f"```python\n{cell.source}\n```", *map(_output, cell.outputs)]
    return "\n\n".join(part for part in shown if part)


def _output(output: nbformat.NotebookNode) -> str:
    """The richest form of an output that a page can show without a script."""
    if output.output_type == "stream":
        return "" if output.name == "stderr" else _text(output.text)  # stderr is for progress
    data = output.data
    if "text/html" in data:
        return f'<div class="output">\n{data["text/html"]}\n</div>'
    if "image/png" in data:
        picture = data["image/png"].replace("\n", "")
        return f'<img class="output" alt="output" src="data:image/png;base64,{picture}">'
    return str(data["text/markdown"]) if "text/markdown" in data else _text(data["text/plain"])


def _text(text: str) -> str:
    return f'<div class="output"><pre>{html.escape(text.rstrip())}</pre></div>'
