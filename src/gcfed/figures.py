"""A matplotlib figure that a notebook shows."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure made without pyplot, which a notebook would otherwise show as text."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100, bbox_inches="tight")
        return file.getvalue()
