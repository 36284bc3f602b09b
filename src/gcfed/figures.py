"""A matplotlib figure that a notebook shows."""

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

TEXT_AS_TEXT: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Text of a vector file can be searched and set in another font; publishers refuse Type 3."""


class Picture(Figure):
    """A figure made without pyplot, which a notebook would otherwise show as text."""

    def savefig(self, *args: Any, **options: Any) -> None:
        """Write it to a file, text as text."""
        with rc_context(TEXT_AS_TEXT):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100, bbox_inches="tight")
        return file.getvalue()
