"""The audit: in which precision is this computed, who says so, what is lost there, and what if it were otherwise?

    with mp.audit() as a:
        train()
    print(a)

Outside the block nothing is measured.
"""

from __future__ import annotations

import sys
from types import ModuleType

from .audit import Audit, audit
from .ledger import Row, Rows
from .listener import Instrument, Place


class _Package(ModuleType):
    """`mp.audit` is this package, and `mp.audit()` the function: calling the package calls it."""

    __call__ = staticmethod(audit)


sys.modules[__name__].__class__ = _Package
