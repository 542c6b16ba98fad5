"""einsum: sums of products in the notation of Einstein, as matrix products and sums."""

from __future__ import annotations

from math import prod
from typing import Any

from ...arguments import floating
from ...events import type_name
from ...tensor import Tensor
from ..dot import matmul
from ..reduce import sum as sum_over
from .shape import diagonal


def einsum(equation: Any, *operands: Any) -> Tensor:
    """The sum of products that `equation` describes, as in torch.einsum and numpy.einsum ("bij,bjk->bik").

    Repeated letters within an operand take its diagonal; "..." stands for leading axes; without "->" the result has the
    letters that appear once, in alphabetical order; axes of length 1 broadcast. Each pair of operands, from left to
    right, is one batched matrix product, rounded once; a letter that one operand alone has is summed first, with a
    rounding of its own. ValueError for an equation that does not fit the operands.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or not operands:
        got = repr(equation) if isinstance(equation, str) else type_name(equation)
        raise TypeError(f"einsum: expected an equation and its operands, got {got} and {len(operands)} operands")
    terms, out, sizes = _parse(equation, [floating("einsum", "operands", x) for x in operands])
    x, labels = _varying(*_diagonal(operands[0], terms[0]), sizes)
    for i in range(1, len(operands)):
        y, others = _varying(*_diagonal(operands[i], terms[i]), sizes)
        needed = set(out).union(*terms[i + 1 :])
        x, labels = _contract(x, labels, y, others, needed)
    gone = [i for i, label in enumerate(labels) if label not in out]
    if gone:
        x, labels = sum_over(x, tuple(gone)), [label for label in labels if label in out]
    return x.permute([labels.index(label) for label in out]) if labels != out else x


def _parse(equation: str, operands: list[Tensor]) -> tuple[list[list], list, dict]:
    """The labels of every operand and of the result, and the labels' lengths; an ellipsis becomes the labels 0, 1, ...
    from the right.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands):
        raise ValueError(f"einsum: {equation!r} names {len(inputs)} operands, got {len(operands)}")
    sizes: dict = {}
    terms, widest = [], 0
    for i, (term, x) in enumerate(zip(inputs, operands)):
        head, dots, tail = term.partition("...")
        letters = head + tail
        extra = x.ndim - len(letters)
        if not (letters.isalpha() or not letters) or extra < 0 or (extra and not dots):
            raise ValueError(f"einsum: {term!r} does not fit operand {i} of shape {x.shape}")
        labels = [*head, *range(extra - 1, -1, -1), *tail]
        widest = max(widest, extra)
        for label, n in zip(labels, x.shape):
            known = sizes.setdefault(label, n)
            first = x.shape[labels.index(label)]  # no broadcasting within one operand
            if n != first or (n != known and 1 not in (n, known)):
                raise ValueError(
                    f"einsum: {label!r} in {equation!r} has lengths {known if n == first else first} and {n}"
                )
            sizes[label] = n if sizes[label] == 1 else sizes[label]
        terms.append(labels)
    dotted = list(range(widest - 1, -1, -1))
    if arrow:
        head, dots, tail = right.partition("...")
        out = [*head, *(dotted if dots else []), *tail]
    else:
        every = [label for term in terms for label in term]
        out = dotted + sorted(label for label in set(every) - set(dotted) if every.count(label) == 1)
    if len(set(out)) != len(out) or not set(out) <= set(sizes):
        raise ValueError(f"einsum: the result {right!r} of {equation!r} repeats a letter or has one no operand has")
    return terms, out, sizes


def _varying(x: Tensor, labels: list, sizes: dict) -> tuple[Tensor, list]:
    """x without the axes of length 1 that are longer elsewhere: it does not depend on them."""
    gone = tuple(i for i, label in enumerate(labels) if x.shape[i] != sizes[label])
    return (x.squeeze(gone), [label for i, label in enumerate(labels) if i not in gone]) if gone else (x, labels)


def _diagonal(x: Tensor, labels: list) -> tuple[Tensor, list]:
    """x with a repeated label's axes replaced by their diagonal (its axis comes last)."""
    labels = list(labels)
    for label in [label for i, label in enumerate(labels) if label in labels[:i]]:
        i, j = [k for k, other in enumerate(labels) if other == label][:2]
        x, labels = diagonal(x, 0, i, j), [labels[k] for k in range(x.ndim) if k not in (i, j)] + [label]
    return x, labels


def _contract(x: Tensor, xs: list, y: Tensor, ys: list, needed: set) -> tuple[Tensor, list]:
    """One pair of operands as a batched matrix product; labels that nothing else needs are summed."""
    for_x = [i for i, label in enumerate(xs) if label not in ys and label not in needed]
    for_y = [i for i, label in enumerate(ys) if label not in xs and label not in needed]
    if for_x:
        x, xs = sum_over(x, tuple(for_x)), [label for i, label in enumerate(xs) if i not in for_x]
    if for_y:
        y, ys = sum_over(y, tuple(for_y)), [label for i, label in enumerate(ys) if i not in for_y]
    size = dict(zip(xs, x.shape)) | dict(zip(ys, y.shape))
    batch = [label for label in xs if label in ys and label in needed]
    inner = [label for label in xs if label in ys and label not in needed]
    rows = [label for label in xs if label not in ys]
    columns = [label for label in ys if label not in xs]

    def shaped(t: Tensor, labels: list, *groups: list) -> Tensor:
        lengths = [prod(size[label] for label in group) for group in groups]
        return t.permute([labels.index(label) for group in groups for label in group]).reshape(lengths)

    z = matmul(shaped(x, xs, batch, rows, inner), shaped(y, ys, batch, inner, columns))
    labels = batch + rows + columns
    return z.reshape([size[label] for label in labels]), labels
