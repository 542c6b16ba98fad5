"""docs/audit.md: its case has the causes that the page tells of, and what it quotes is what the tool says.

The case runs shorter here than on the page: quoted lines are compared without their numbers.
"""

import io
import json
import re
import runpy
from contextlib import redirect_stdout, suppress
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from examples.cnn import network as cnn
from tinymp import nn, ops, optim
from tinymp.lab.cli import main

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "audit.md").read_text("utf-8")
SCRIPT = ROOT / "docs" / "audit_case.py"
LINES = SCRIPT.read_text("utf-8").splitlines()
MEND = ["--divide-first", "--scale"]

pytestmark = pytest.mark.cpu


def place(code):
    """File and line of the only line of the script that holds this code."""
    (number,) = [i for i, line in enumerate(LINES, 1) if code in line]
    return f"{SCRIPT.name}:{number}"


SQUARE, LOSS, MADE = place("(x * x)"), place("ops.mse_loss("), place("policy.cast(Restorer())")


def printed_by(run, *arguments):
    with redirect_stdout(io.StringIO()) as out:
        run(*arguments)
    return out.getvalue()


def errors(printed):
    """{policy: share of the variance left unexplained, in percent}."""
    return {name: float(share) for name, share in re.findall(r"^(\w+): ([\d.]+)% of the variance", printed, re.M)}


def train(model, x, loss, scaler, steps=4, optimizer=optim.Adam):
    model, optimizer = mp.MIXED.cast(model), optimizer(model.parameters())
    for _ in range(steps):
        scaler.scale(loss(model(x))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


FORMATS = ["bf16", "e4m3", "e4m3-tensor", "e5m2-tensor", "mxfp8", "nvfp4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The page's commands: what they printed, and audit.json of the two audits."""
    printed, written = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinymp.audit.report.panels", lambda audit: {})  # the page quotes none

        def script(*arguments):
            patch.setattr("sys.argv", [str(SCRIPT), *arguments])
            runpy.run_path(str(SCRIPT), run_name="__main__")

        for name, flags in (("bad", []), ("good", MEND)):
            out, arguments = tmp_path_factory.mktemp(name), ["--epochs", "7", *flags]
            printed[name] = printed_by(script, "--epochs", "12", *flags)
            printed[f"{name} audit"] = printed_by(main, ["audit", "--out", str(out), str(SCRIPT), *arguments])
            written[name] = json.loads((out / "audit.json").read_text("utf-8"))
        with mp.audit(shadow=True, formats=FORMATS) as a:
            printed_by(script, "--epochs", "1", *MEND)
        patch.setenv("COLUMNS", "120")
        traced = tmp_path_factory.mktemp("traced")
        two = ["FP32", "MIXED", "--epochs", "1"]
        printed["trace"] = printed_by(main, ["audit", "--trace", "--out", str(traced), str(SCRIPT), *two])
        printed["diff"] = printed_by(main, ["diff", f"{traced}:FP32", f"{traced}:MIXED", "--out", str(traced / "diff")])
        printed["instruments"] = "\n".join(map(str, (a.histograms, a.updates, a.bytes, a.shadow, a.formats)))
    return printed, written


def test_the_case_trains_badly_and_is_mended(runs):
    bad, good = errors(runs[0]["bad"]), errors(runs[0]["good"])
    assert bad["MIXED"] > good["MIXED"] + 8  # percent of the variance


def test_the_audit_names_both_causes_and_nothing_else(runs):
    bad = runs[1]["bad"]
    overflow, underflow = bad["advice"]
    assert overflow["text"] == "Write ops.rms_norm instead of x / rms(x)"
    assert SQUARE in overflow["where"]
    assert underflow["text"].startswith("Raise the loss scale from 1 ")
    assert "mse_loss" in underflow["where"] and LOSS in underflow["where"]

    (square,) = [row for row in bad["ledger"] if row["infinite"]]
    assert (square["module"], square["op"], square["phase"], square["caller"]) == ("model", "mul", "forward", SQUARE)
    assert square["infinite"] > 0.05 * square["rounded"]
    assert square["largest"] == 2.0**24  # 4095^2, as 4095 is 4096 in FP16
    loss = max(bad["ledger"], key=lambda row: row["zero"])
    assert (loss["op"], loss["phase"], loss["caller"]) == ("mse_loss", "backward", LOSS)
    assert loss["zero"] > 0.4 * loss["rounded"]
    assert bad["scale"]["skipped"] == []  # and no NaN: nothing else would tell
    good = runs[1]["good"]  # nothing is found in the mended case
    assert good["advice"] == []
    assert not any(row["infinite"] for row in good["ledger"])
    assert all(row["zero"] <= 0.001 * row["rounded"] for row in good["ledger"])
    assert good["scale"]["skipped"] == []


def shape(line):
    """The words of a line, without numbers (except those of the script's lines) and without the names of layers."""
    line = line.replace("\N{NO-BREAK SPACE}", " ")
    line = re.sub(r"\b(tinymp/)?(\w+/\w+\.py):\d+", r"\2:#", line)
    line = re.sub(r"\bmodel\.[\w.]*\w", "LAYER", line)
    number = r"\d[\d,]*(\.\d+)?(e[+-]\d+)?[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*( [kMGT]\b)?"
    line = re.sub(rf"(?<![\w.:^-])(< )?-?{number}", "#", line)
    return line.replace("# × #", "#").split()


def within(quoted, line):
    """True if this line has the quoted words in this order: a quotation may omit columns."""
    rest = iter(line)
    return all(word in rest for word in quoted)


@pytest.fixture(scope="module")
def texts(runs):
    """All that the tool said in the runs of the page."""
    mp.manual_seed(0)
    rng, labels = np.random.default_rng(0), mp.tensor([0, 1, 2, 3, 4, 5, 6, 7] * 8)
    with mp.audit() as a:
        x = mp.tensor(rng.random((64, 1, 28, 28))).half()
        train(cnn(1, 28, 28, 10), x, lambda y: ops.cross_entropy(y, labels), optim.DynamicLossScaler(2.0**20))
    cnn_says = re.sub(rf"{Path(__file__).name}:\d+", "train.py:10", str(a.scale)), str(a.products)
    two = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = mp.tensor(np.random.default_rng(0).standard_normal((32, 8)) * 20).half()

    def steep(parameters):
        return optim.SGD(parameters, lr=3.0)

    with suppress(FloatingPointError), mp.audit() as a:
        train(two, x, lambda y: ops.mse_loss(y.float(), mp.zeros(32, 4)), optim.DynamicLossScaler(), 60, steep)
    cnn_says = *cnn_says, re.sub(rf"{Path(__file__).name}:\d+", "train.py:13", str(a.crash)).replace("two.", "model.")
    return [*runs[0].values(), *cnn_says, printed_by(main, ["explain", "when does S grow"])]


@pytest.fixture(scope="module")
def said(texts):
    """The shapes of all lines of it."""
    return [shape(line) for text in texts for line in text.splitlines()]


QUOTED = [
    line
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
    if line.strip("-. ") and not line.startswith(("$", "{"))
]


def test_what_the_page_quotes_is_still_said(said):
    assert len(QUOTED) > 50
    assert [line for line in QUOTED if not any(within(shape(line), other) for other in said)] == []


def test_lines_of_tinymp_that_the_page_names_are_those_that_the_tool_names(texts):
    """Their numbers, which `shape` leaves out."""
    lines = re.compile(r"\b\w+/\w+\.py:\d+")
    named = set(lines.findall(PAGE))
    assert len(named) >= 4 and named - set(lines.findall("\n".join(texts))) == set()


def test_lines_and_edits_that_the_page_shows_are_those_of_the_script():
    assert f"made at {MADE}, called at {SQUARE}\n" in PAGE  # by bisect, whose search takes minutes
    assert set(re.findall(r"audit_case\.py:\d+", PAGE)) <= {SQUARE, LOSS, MADE, place("self.encoder(x)")}
    assert f"Line {SQUARE.partition(':')[2]}, `x / (x * x)" in PAGE
    assert f"Line {LOSS.partition(':')[2]}: the loss is a mean" in PAGE
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE, re.S)
    for line in diff.splitlines():
        code = line[1:].strip().partition("scaler = ")[2] or line[1:].strip()
        assert any(code in other for other in LINES), code


def test_its_python_runs(capsys):
    x = mp.tensor(np.ones((8, 8), "float32")).half()
    names = {"mp": mp}

    def small():
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        train(model, x, lambda y: y.float().square().mean(), optim.NoLossScaler())

    names["train"] = small
    audited, predicted, own = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    for code, printed in ((audited, "of 4 steps"), (predicted, "FP32 / this: 1.60"), (own, "{'model.1': '")):
        exec(compile(code, "audit.md", "exec"), names)
        assert printed in capsys.readouterr().out
