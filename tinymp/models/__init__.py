"""The networks of the paper. They lie in examples/paper; this name of theirs, which old pickles know, stays for now."""

from typing import Any

from ..lab.shipped import home, stand_in


def __getattr__(name: str) -> Any: ...  # for type checkers


stand_in(__name__, home("examples") / "examples" / "paper")
