"""A program runs in PyTorch and here, and the results are compared."""

from typing import Any

import numpy as np


def compare(theirs: Any, own: Any, rtol: float = 2e-5, atol: float = 1e-6, values: bool = True) -> None:
    """Equal in structure, shapes and dtypes, and, if asked, in values within tolerances."""
    if isinstance(theirs, (list, tuple)):
        assert len(theirs) == len(own)
        for a, b in zip(theirs, own, strict=True):
            compare(a, b, rtol, atol, values)
    elif hasattr(theirs, "detach") or isinstance(theirs, (float, np.ndarray)):
        theirs, own = (np.asarray(x.detach().numpy() if hasattr(x, "detach") else x) for x in (theirs, own))
        assert (own.shape, own.dtype) == (theirs.shape, theirs.dtype)
        if values:
            np.testing.assert_allclose(own, theirs, rtol=rtol, atol=atol)
    else:
        assert own == theirs
