"""Matrix products: the size of each, and which of them Tensor Cores take (NVG section 2.2).

Dimensions should be multiples of 8: m, n and k, that is a layer's inputs and outputs and the rows of a batch; of a
convolution its channels, whatever the batch and the images. Later versions of cuBLAS use Tensor Cores for other sizes,
too, at a lower efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..autograd import Op
from ..dtypes import FLOATING, HALF
from ..gradients import values_of
from ..ops.conv import Conv2d, ConvTranspose2d
from ..precision import current_policy
from .listener import At, Instrument, Place
from .sampling import BLUE, RED, Told, bars, table

MULTIPLE = 8  # FP16 dimensions should be multiples of it (NVG section 2.2)


@dataclass
class Product(At):
    """Products of one size at one place of their call: `batch` times (m, k) @ (k, n), `calls` times. A convolution is
    one, per group, whatever blocks compute it. dtype: that of storage.

    axes     what the dimensions are, where that is known: "inputs", "outputs" of the weight, "rows" of the batch
    lengths  what should be a multiple of 8: m, n and k; of a convolution only the channels in them
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    accumulate: str
    axes: dict[str, str]
    lengths: dict[str, int]
    policy: str
    calls: int = 0

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k * self.calls

    @property
    def misaligned(self) -> list[str]:
        """The axes among m, n and k whose lengths, or whose channels, are not multiples of 8."""
        return [name for name, length in self.lengths.items() if length % MULTIPLE]

    @property
    def odd(self) -> str:
        """The misaligned axes and their lengths: "inputs: 1"."""
        return ", ".join(f"{self.axes.get(name, name)}: {self.lengths[name]}" for name in self.misaligned)

    @property
    def eligible(self) -> bool:
        """True if Tensor Cores take it: FP16 or BF16 operands, all dimensions multiples of 8 (NVG section 2.2)."""
        return self.dtype in HALF and not self.misaligned

    @property
    def padding_cost(self) -> float:
        """The share of operations that padding every length to the next multiple of 8 adds."""
        return prod(padded(s) / s for s in self.lengths.values() if s) - 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {name: getattr(self, name) for name in ("flops", "misaligned", "eligible", "padding_cost")}


def padded(length: int) -> int:
    """The next multiple of 8."""
    return -(-length // MULTIPLE) * MULTIPLE


class Products(Told, Instrument):
    """Lists every matrix product.

    rows               all products (`Product`), the most operations first
    flops              multiplications and additions of all products
    tensor_core_share  the share of them that is in products which Tensor Cores take; 0 without any
    """

    def __init__(self) -> None:
        self._rows: dict[tuple, Product] = {}
        self._seen: list[tuple] = []  # since the last op

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        batch = max(prod(a.shape[:-2]), prod(b.shape[:-2]))
        self._seen.append((place, batch, a.shape[-2], b.shape[-1], a.shape[-1], accumulate))

    def added(self, place: Place, part: Any, times: Any, accumulate: str) -> None:
        if times is not None:  # a depthwise convolution, whose geometry says the rest
            self._seen.append((place, 1, 1, part.size, 1, accumulate))

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        seen, self._seen = [s for s in self._seen if s[0].op == place.op and s[0].phase == place.phase], []
        if not seen:
            return
        dtype = next(str(v.dtype) for v in map(values_of, inputs) if hasattr(v, "dtype") and v.dtype in FLOATING)
        if isinstance(op, (Conv2d, ConvTranspose2d)):
            for parts in _convolutions(place.phase, op):
                axes = dict(zip("mnk", parts))
                lengths = {name: parts[of][0] for name, of in axes.items() if of != "rows"}
                self._add(place, op.geometry.groups, *map(prod, parts.values()), dtype, seen[0][-1], axes, lengths)
            return
        matrices = _matrices(place.phase, op, inputs)
        for at, batch, *sizes, accumulate in seen:
            lengths = dict(zip("mnk", sizes))
            where = place._replace(where=at.where)
            self._add(where, batch, *sizes, dtype, accumulate, _axes(lengths, matrices), lengths)

    def _add(self, place: Place, *what: Any) -> None:
        *sizes, axes, lengths = what
        key = place, *sizes, *axes.items(), *lengths.items(), (policy := current_policy().name)
        if key not in self._rows:
            self._rows[key] = Product.place(place, *what, policy)
        self._rows[key].calls += 1

    # ---- what was found

    rows = property(lambda self: sorted(self._rows.values(), key=lambda row: -row.flops))
    flops = property(lambda self: sum(row.flops for row in self.rows))
    tensor_core_share = property(lambda self: sum(r.flops for r in self.rows if r.eligible) / max(self.flops, 1))

    def as_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [row.as_dict() for row in self.rows]

    def parts(self) -> list[str]:
        if not self._rows:
            return ["no matrix product was seen"]
        odd = any(row.misaligned and row.dtype in HALF for row in self.rows)
        newer = "; cuBLAS 11 and later runs sizes that are no multiples of 8 there as well, less efficiently" * odd
        cells = [("of all", "batch x m x n x k", "calls", "dtype", "not of 8", "padded", "module", "op", "phase")]
        every = max(self.flops, 1)
        for row in self.rows:
            size = " x ".join(map(str, (row.batch, row.m, row.n, row.k)))
            cost = f"+{row.padding_cost:.1%}" * bool(row.misaligned)
            cells.append(
                (
                    f"{row.flops / every:.1%}",
                    size,
                    str(row.calls),
                    row.dtype,
                    row.odd,
                    cost,
                    row.module,
                    row.op,
                    row.phase,
                )
            )
        said = f"{self.tensor_core_share:.1%} of the operations of matrix products can run on Tensor Cores{newer}"
        return [said, table(cells, left=range(len(cells[0])), ruled=False)]

    def draw(self, axes: Any) -> None:
        """Bars: the share of all operations in each of the 12 largest products; which are misaligned, and in what."""
        rows, every = self.rows[:12], max(self.flops, 1)
        names = [f"{row.module} {row.op} {row.phase}: {row.m} × {row.n} × {row.k}".strip() for row in rows]
        shares = [100 * row.flops / every for row in rows]
        bars(axes, names, {"": (shares, [RED if row.misaligned else BLUE for row in rows])}, [row.odd for row in rows])
        axes.set(xlabel="share of all operations, %; orange: no multiple of 8", title="The largest products")


def _convolutions(phase: str, op: Conv2d | ConvTranspose2d) -> list[dict[str, tuple[int, ...]]]:
    """The products of a convolution, as in ops/conv.py: what m, n and k are, and the factors of each. A row is a
    position of an image, of which the columns are what a kernel sees there.
    """
    x, w, *_ = op.saved
    transposed, g = isinstance(op, ConvTranspose2d), op.geometry
    one, other = ("inputs", "outputs") if transposed else ("outputs", "inputs")
    channels, columns = (w.shape[0] // g.groups,), (w.shape[1], prod(g.kernel))
    rows = x.shape[0], prod(x.shape[2:] if transposed else g.output(*x.shape[2:]))
    correlate = {one: channels, "rows": rows, other: columns}
    spread = {other: columns, "rows": rows, one: channels}
    if phase == "forward":
        return [spread if transposed else correlate]
    wanted = (correlate if transposed else spread), {other: columns, one: channels, "rows": rows}
    return [product for product, needed in zip(wanted, op.needs) if needed]


def _matrices(phase: str, op: Op, inputs: tuple) -> list[tuple[int, int]]:
    """The shapes (outputs, inputs) of an op's weights; none for a product of any two tensors (matmul)."""
    shapes: list[Any] = [getattr(x, "shape", ()) for x in (inputs if phase == "forward" else op.targets)]
    return [s for name, s in zip(op.arguments, shapes) if name.startswith("weight") and len(s) == 2]


def _axes(lengths: dict[str, int], matrices: list[tuple[int, int]]) -> dict[str, str]:
    """The axes m, n and k in a product of rows with one of these matrices, or in one of its gradients."""
    for matrix in matrices:
        left, axes = dict(lengths), {}
        for length, of in zip(matrix, ("outputs", "inputs")):
            name = next((name for name, size in left.items() if size == length), None)
            if name is not None:
                axes[name] = of
                del left[name]
        if len(axes) == 2:
            return axes | dict.fromkeys(left, "rows")
    return {}
