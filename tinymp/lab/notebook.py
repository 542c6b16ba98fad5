"""In a notebook: after `%load_ext tinymp.lab.notebook`, a cell that begins with `%%audit` is audited.

%%audit                           shows the audit below the cell, and leaves it in the variable `a`
%%audit shadow=True as b          with the arguments of `mp.audit`, in the variable `b`
"""

from __future__ import annotations

import re
import time
from typing import Any

from IPython.display import Pretty, display

from ..audit.audit import audit
from ..audit.listener import Instrument
from ..audit.numbers import many, number


class Progress(Instrument):
    """Shows how far a training is, in one line that is renewed in its place at most twice a second."""

    def __init__(self) -> None:
        self.shown, self.line = time.monotonic(), display(Pretty("audit: no step so far"), display_id=True)

    def stepped(self, optimizer: Any, result: Any) -> None:
        if time.monotonic() >= self.shown + 0.5:
            self.show()

    def show(self) -> None:
        self.shown = time.monotonic()
        loss = "" if self.listener.loss is None else f", loss {number(self.listener.loss[0])}"
        self.line.update(Pretty(f"audit: {many(self.listener.iterations, 'step')}{loss}"))


def load_ipython_extension(shell: Any) -> None:
    """The function that `%load_ext` calls."""

    def audited(line: str, cell: str) -> None:
        options, name = re.fullmatch(r"(.*?)(?:\bas\s+(\w+))?\s*", line).groups()  # type: ignore[union-attr]
        options, progress = eval(f"dict({options})", shell.user_ns), Progress()
        made = shell.user_ns[name or "a"] = audit(progress, **options)
        count, shell.execution_count = shell.execution_count, len(shell.user_ns["In"]) - 1  # of the cell, not the next
        try:
            with made:  # a line in place of the magic's: lines have the numbers that the reader sees
                shell.run_cell(f"# %%audit\n{cell}", store_history=False).raise_error()
        except BaseException as error:
            error._render_traceback_ = lambda: []  # type: ignore[attr-defined]  # the cell has shown it
            raise
        finally:
            shell.execution_count = count
            progress.show()
            display(made)

    shell.register_magic_function(audited, "cell", "audit")
