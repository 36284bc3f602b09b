"""A model as a table: what each parameter is, and what gradient centralization does to it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gcfed.core.roles import Role
from gcfed.core.tree import Tree
from gcfed.display import aligned, html_table

COLUMNS = ("parameter", "shape", "kind", "output axis", "inputs", "head", "Local GC", "Global GC")


@dataclass(frozen=True)
class DescribedParameter:
    """A parameter, its role, and whether clients and the server centralize it.

    ``num_inputs`` is how many numbers belong to each output of a weight, and None of anything else.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    num_inputs: int | None
    local: bool
    server: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of this parameter, as text."""
        return (
            self.name,
            "x".join(map(str, self.shape)) or "scalar",
            self.role.kind,
            str(self.role.output_axis) if self.role.is_weight else "-",
            "-" if self.num_inputs is None else str(self.num_inputs),
            *("yes" if said else "no" for said in (self.role.head, self.local, self.server)),
        )


@dataclass(frozen=True, repr=False)
class Description:
    """The trained parameters of a model, one a row; it prints as a table."""

    parameters: tuple[DescribedParameter, ...]

    def __repr__(self) -> str:
        return "\n".join(aligned([COLUMNS, *(p.cells for p in self.parameters)]))

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, [p.cells for p in self.parameters])


def described(
    params: Tree, roles: Mapping[str, Role], local: Collection[str], server: Collection[str]
) -> Description:
    """The table of parameters of which clients centralize ``local``, and the server ``server``."""
    return Description(
        tuple(
            DescribedParameter(
                name=name,
                shape=tuple(w.shape),
                role=roles[name],
                num_inputs=roles[name].num_inputs(w.shape) if roles[name].is_weight else None,
                local=name in local,
                server=name in server,
            )
            for name, w in params.items()
        )
    )
