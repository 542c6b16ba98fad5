"""In a notebook: a cell is audited, its lines have the reader's numbers, and one line tells how far it is."""

import pytest

import tinymp as mp
from tinymp.lab.explain import explain

pytestmark = pytest.mark.cpu
SETUP = """
import numpy as np
import tinymp as mp
from tinymp import nn, optim
w = nn.Parameter(np.ones(3, "f4"))
sgd = optim.SGD([w], lr=0.1)
def step():
    (w * w).sum().backward()
    sgd.step()
"""


@pytest.fixture
def shell(monkeypatch):
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    from tinymp.lab import notebook

    interactive.InteractiveShell.clear_instance()
    made = interactive.InteractiveShell.instance()
    made.history_manager.enabled = False
    made.lines, made.shown = [], []

    class Handle:
        def update(self, text):
            made.lines.append(text.data)

    def display(what, display_id=False):
        return Handle() if display_id else made.shown.append(what)

    monkeypatch.setattr(notebook, "display", display)
    made.run_cell("%load_ext tinymp.lab.notebook", store_history=True)
    assert made.run_cell(SETUP, store_history=True).success
    yield made
    interactive.InteractiveShell.clear_instance()


@pytest.mark.parametrize(("line", "name"), [("", "a"), ("every=1, shadow=True", "a"), ("shadow=True as b", "b")])
def test_a_cell_is_audited(shell, line, name):
    done = shell.run_cell(f"%%audit {line}\nfor _ in range(20):\n    step()\nw * 2", store_history=True)
    assert done.success
    (a,) = shell.shown
    assert a is shell.user_ns[name] and (a.shadow is not None) is ("shadow" in line)
    assert {"In [2]:8", "In [3]:4"} <= {row.caller for row in a.ledger}  # as the reader counts them
    assert shell.lines[-1].startswith("audit: 20 steps, loss ") and len(shell.lines) < 20


def test_the_line_is_renewed_now_and_then(shell, monkeypatch):
    from tinymp.lab import notebook

    now = iter(range(1000))
    monkeypatch.setattr(notebook.time, "monotonic", lambda: next(now) * 0.1)
    shell.run_cell("%%audit\nfor _ in range(20):\n    step()")
    assert 2 < len(shell.lines) < 8


def test_a_cell_that_fails_says_so_once_and_the_audit_is_there(shell, capsys):
    done = shell.run_cell("%%audit\nstep()\n1 / 0")
    assert isinstance(done.error_in_exec, ZeroDivisionError)
    assert capsys.readouterr().out.count(": division by zero") == 1
    assert "ZeroDivisionError" in str(shell.shown[0].crash) and not mp.events.here.observers


def test_an_explanation_is_text_as_it_is():
    assert explain("softmax")._repr_html_().startswith("<pre>softmax: op, REDUCTION\n")
