"""Code shared by instruments: values by tensor, sparse rows once each, tables, bars and colours."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from .. import backend
from ..autograd import Op, Variable
from ..dtypes import FLOATING
from ..gradients import values_of
from ..precision import widen

# Colours that colour-blind readers can tell apart
BLUE, SKY, RED, GREEN, PINK = "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7"
MOST = 1000  # rows of a table as HTML


T = TypeVar("T")


class ByTensor(Generic[T]):
    """Something about each tensor: found by its array, as long as that lives and is not changed in place."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[ref, int, T]] = {}  # by the id of an array: its version, and what is kept
        # NumPy's scalars become other arrays in the Tensor: they are found by the op that made them
        self._scalars: WeakKeyDictionary[Op, dict[int, T]] = WeakKeyDictionary()

    def put(self, x: Any, version: int, value: T, op: Op | None = None, i: int = 0) -> None:
        """Keep a value for an array, or for the i-th result of an op."""
        x = values_of(x)
        if not isinstance(x, np.generic):
            arrays, key = self._arrays, id(x)
            arrays[key] = ref(x, lambda _: arrays.pop(key, None)), version, value
        elif op is not None:
            self._scalars.setdefault(op, {})[i] = value

    def of_array(self, x: Any, version: int) -> T | None:
        """The value of an array, None if it has none at this version."""
        x = values_of(x)
        array, seen, value = self._arrays.get(id(x), (None, 0, None))
        return value if array is not None and array() is x and seen == version else None

    def of(self, x: Variable) -> T | None:
        of_scalar = self._scalars.get(x.grad_fn, {}) if x.grad_fn is not None else {}
        return of_scalar[x.output_nr] if x.output_nr in of_scalar else self.of_array(x.array, x.version)


def array_in(x: Any) -> Any:
    """The array of a gradient or a Tensor; anything else as it is."""
    x = values_of(x)
    return x if hasattr(x, "strides") else getattr(x, "array", x)


def nonfinite(x: Any) -> int:
    """The number of infinities and NaNs in an array, a gradient, a Tensor or a number; 0 unless it is floating."""
    if isinstance(x, float):
        return int(not math.isfinite(x))
    x = array_in(x)
    if not hasattr(x, "dtype") or x.dtype not in FLOATING or backend.of(x).isfinite(x):
        return 0
    xp = backend.of(x).xp
    return int(xp.count_nonzero(~xp.isfinite(widen(x))))


def distinct(g: Any) -> Any:
    """g itself, or SparseRows with each row once: on a GPU, one may come several times."""
    if not hasattr(g, "indices") or backend.of(g.values) is backend.cpu:
        return g
    first = g.first_places() == backend.of(g.values).xp.arange(len(g.indices))
    return type(g)(g.indices[first], g.values[first], g.shape)


def version_of_result(y: Any, args: tuple) -> int:
    """The version that the Tensor of an op's result y will have: a view shares that of its argument (`Op.apply`)."""
    owner = backend.owner_of(y)
    seen = [a.version for a in args if isinstance(a, Variable) and backend.owner_of(a.array) is owner]
    return seen[0] if seen else 0


# ------------------------------------------------------------------------------------------------------ tables and bars


class Table(str):
    """A table as text, which a notebook and the report show as HTML."""

    cells: Sequence[Sequence[str]]
    left: Container[int]

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            sides = ["left" if i in self.left else "right" for i in range(len(cells))]
            return "".join(f"<{tag} style='text-align: {s}'>{breakable(c)}</{tag}>" for s, c in zip(sides, cells))

        head, *rows = self.cells
        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[:MOST])
        table = f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div class='scroll' style='max-height: 40em; overflow: auto'>{table}</div>"


def table(
    rows: Sequence[tuple[str, ...]], left: Container[int] = (0,), most: int | None = 20, ruled: bool = True
) -> Table:
    """Rows of cells below each other, the first as their heads. left: the columns aligned to the left; most: rows
    shown as text, None for all; ruled: with a line below the heads.
    """
    shown = rows[: None if most is None else most + 1]
    widths = [max(map(len, column)) for column in zip(*shown)]
    lines = [
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
        for row in shown
    ]
    more = [f"... and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    made = Table("\n".join([lines[0], *["-" * len(lines[0])] * ruled, *lines[1:], *more]))
    made.cells, made.left = rows, left
    return made


class Told:
    """Base of results with parts, sentences and tables: `print` shows them as text, a notebook as HTML."""

    def parts(self) -> list[str]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def _repr_html_(self) -> str:
        return html(self.parts())


def html(parts: Iterable[str]) -> str:
    """Sentences and tables as HTML; of an indented text the line before it is its title."""
    return "\n".join(part._repr_html_() if isinstance(part, Table) else _paragraph(part) for part in parts if part)


def _paragraph(text: str) -> str:
    titled = re.sub(r"\A([^\n]*)(?=\n    )", r"<b>\1</b>", breakable(text))
    return f"<p style='white-space: pre-line'>{titled}</p>"


def breakable(text: str) -> str:
    """Text as HTML, in which long names may go on in another line behind their dots."""
    return re.sub(r"(?<=\w)([.])(?!py\b)(?=[A-Za-z_])", r"\1<wbr>", escape(text))


def bars(axes: Any, names: Sequence[str], series: Mapping[str, tuple[Any, Any]], notes: Any = ()) -> None:
    """Horizontal bars on matplotlib's axes, the first name on top. series: {label: (lengths, colour or colours)}, end
    to end; notes: a text behind each bar.
    """
    places, start = range(len(names))[::-1], [0.0] * len(names)
    for label, (lengths, color) in series.items():
        drawn = axes.barh(places, lengths, left=start, color=color, label=label)
        start = [a + b for a, b in zip(start, lengths)]
    if notes:
        axes.bar_label(drawn, notes, padding=4, fontsize=8)
    axes.set_yticks(places, names)
    if len(series) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.15), ncols=3, fontsize=8, frameon=False)
