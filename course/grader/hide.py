"""Takes the solutions out of a lesson's text. setup.py runs this file alone: a wheel, which students get, has none."""

import re

EMPTY = "your turn"  # what an exercise that is not written yet raises
HIDDEN = re.compile(r"^( *)# SOLUTION\n.*?^\1# END\n?", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"^( *\w+ = ).*  # SOLUTION$", re.MULTILINE)


def unsolved(source: str) -> str:
    """The text with `raise NotImplementedError("your turn")` and `...` in the place of solutions."""
    source = HIDDEN.sub(rf'\1raise NotImplementedError("{EMPTY}")\n', source)
    return ANSWER.sub(rf"\1...  # {EMPTY}", source)
