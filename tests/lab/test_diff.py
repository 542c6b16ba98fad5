"""Two runs compared: they part where they were made to part, and what differs is told from what follows from it."""

import json
import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

import tinymp as mp
from job import Job
from oracle import rng
from tinymp import nn, ops, optim
from tinymp.audit.run import Run
from tinymp.audit.trace import FILE
from tinymp.lab.cli import main
from tinymp.lab.diff import diff
from tinymp.ops.conv import Conv2d
from tinymp.ops.dot import Linear
from tinymp.ops.norm import BatchNorm

pytestmark = pytest.mark.cpu


def job(folder):
    made = Job("cpu", scale=2.0**8)
    with mp.audit(trace=folder), mp.use(made.policy):
        for i in range(5):
            made.step(*made.batch(i))
    return folder


def small(folder, steps=3, seed=0, policy=mp.FP32, data=0, lr=0.1, more=False, scale=1.0, clip=None):
    """A small training whose parts can each be another."""
    mp.manual_seed(seed)
    model = policy.cast(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Identity(), nn.Linear(16, 3)))
    optimizer, scaler, batches = optim.Adam(model.parameters(), lr=lr), optim.StaticLossScaler(scale), rng(data)
    with mp.audit(trace=folder), mp.use(policy):
        for _ in range(steps):
            x = policy.cast(mp.tensor(batches.standard_normal((20, 8)).astype("float32")))
            y = model(x)
            y = ops.relu(y) * 1.0 if more else y
            scaler.scale(ops.cross_entropy(y, mp.tensor(batches.integers(0, 3, 20)))).backward()
            if clip is not None:
                scaler.unscale_(optimizer)
                optim.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return folder


def plant(monkeypatch, cls, phase, call):
    """Flip the last bit of one element in the (last) result of one call of an op."""
    original, calls = getattr(cls, phase), []

    def planted(self, *arrays, **options):
        y = original(self, *arrays, **options)
        calls.append(1)
        if len(calls) - 1 == call:
            last = np.array(y[-1] if isinstance(y, tuple) else y, order="C")
            last.reshape(-1).view(f"uint{8 * last.itemsize}")[last.size // 3] ^= 1
            y = (*y[:-1], last) if isinstance(y, tuple) else last
        return y

    monkeypatch.setattr(cls, phase, planted)


@pytest.mark.parametrize(
    ("cls", "phase", "module", "op", "name"),
    [
        (Conv2d, "forward", "model.0", "conv2d", ""),
        (Linear, "forward", "model.6", "linear", ""),
        (Linear, "backward", "model.6", "linear", "bias"),
        (BatchNorm, "backward", "model.1", "batch_norm", "bias"),
    ],
)
def test_two_runs_that_part_at_a_known_op_and_step(cls, phase, module, op, name, tmp_path, monkeypatch):
    job(tmp_path / "a")
    plant(monkeypatch, cls, phase, call=3)
    found = diff(tmp_path / "a", job(tmp_path / "b"))
    first = found.first
    assert (first.iteration, first.a.module, first.a.op, first.a.phase) == (3, module, op, phase)
    assert (first.a.role, first.a.name, first.inputs) == ("output", name, 0)
    assert "the op itself computes something else" in found.why()
    assert [step.differ for step in found.steps[:3]] == [0, 0, 0] and found.steps[3].differ
    assert found.only == [0, 0] and not found.same and not found.configuration
    before = found.depth[: next(i for i, p in enumerate(found.depth) if p.a is first.a)]
    assert before and all(p.same for p in before)
    assert f"First difference: step 3, {first.a} (" in " ".join(str(found).split())


def test_a_run_and_its_repetition_are_the_same(tmp_path):
    found = diff(job(tmp_path / "a"), job(tmp_path / "b"))
    assert found.same and found.first is found.parted is found.unmatched is None
    assert [(s.differ, s.worst, s.loss_a == s.loss_b) for s in found.steps] == [(0, 0.0, True)] * 5
    assert "No difference, bit for bit: 225 tensors in 5 steps." in str(found)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path)]) == 0


def test_another_seed_and_other_data(tmp_path):
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", seed=1))
    assert (found.first.iteration, found.first.a.role, str(found.first.a)) == (0, "parameter", "model.0.weight")
    assert "another seed" in found.why()
    assert found.configuration == {"seed": ("0", "1")}
    found = diff(tmp_path / "a", small(tmp_path / "c", data=1))
    assert (found.first.iteration, found.first.a.role, found.first.a.name) == (0, "input", "input")
    assert "given different data" in found.why() and not found.configuration


def test_another_policy_is_compared_in_values(tmp_path):
    """FP16 against FP32: each op is a few roundings away, with and without a loss scale."""
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", policy=mp.MIXED, scale=1024.0))
    assert set(found.configuration) == {"policy"}
    assert "FP32" in found.configuration["policy"][0] and "MIXED" in found.configuration["policy"][1]
    assert (found.first.a.dtype, found.first.b.dtype) == ("float32", "float16")
    assert 0 < found.first.distance <= 1.5 * 2.0**-11 and "One rounding explains the distance." in found.why()
    assert "other weights" not in found.why()
    depth = {(p.a.role, str(p.a)): p for p in found.depth}
    for what in ("model.0 linear forward", "model.1 relu forward", "model.3 linear forward"):
        assert 2.0**-15 < depth["output", what].distance < 2.0**-9  # one to some roundings
    p = depth["output", "model.3 linear backward (weight)"]
    assert p.b.scale == 1024 and 0 < p.distance < 0.1  # without its scale: with it, almost 1
    assert found.steps[0].loss_a == pytest.approx(found.steps[0].loss_b, rel=1e-3)


def test_an_op_more(tmp_path):
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", more=True, steps=2))
    iteration, which, line = found.diverges
    assert (iteration, which, line.op) == (0, "B", "relu") and found.only[0] == 0 and found.only[1] > 4
    assert len(found.steps) == 2 and "They part: step 0, small() relu forward (" in str(found)
    assert (found.first.a.op, found.first.rewired) == ("cross_entropy", True) and found.first.inputs > 0.1
    assert "an op before it is in B alone, small() relu forward (" in found.why()
    assert "Unmatched in step 0: 0 ops in A alone, 2 in B alone, 0 in another order" in str(found)


class Net(nn.Module):
    """Two branches, whose parts can be others. All layers are made in the same order: they draw the same weights."""

    def __init__(self, edits):
        super().__init__()
        self.edits, self.stem = edits, nn.Linear(8, 16)
        self.left, self.right, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.tail = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
        self.head, self.extra, self.drop = nn.Linear(16, 3), nn.Linear(16, 16), nn.Dropout(0.3)
        middle = list(self.tail)
        if "front" in edits:
            middle = [self.extra, *middle]
        if "middle" in edits:
            del middle[1]
        if "norms" in edits:
            middle = [part for one in middle for part in (one, nn.LayerNorm(16))]
        self.tail = nn.Sequential(*middle)

    def branches(self, x):
        if "swap" in self.edits:
            right = ops.relu(self.right(x))
            return ops.relu(self.left(x)) + right
        return ops.relu(self.left(x)) + ops.relu(self.right(x))

    def forward(self, x):
        has = self.edits.__contains__
        x = ops.matmul(x, self.stem.weight.T) + self.stem.bias if has("split stem") else self.stem(x)
        x = ops.tanh(x) if has("tanh") else ops.relu(x)
        if has("layer"):
            x = ops.relu(self.extra(x))
        if has("drop"):
            x = self.drop(x)
        if has("useless"):
            x = x.reshape(20, 4, 4).reshape(20, 16) * 1.0
        if has("half"):
            x = x.half().float()
        y = self.branches(x)
        if has("skip"):
            y = y + x
        y = y if has("no norm") else self.norm(y)
        if has("late drop"):
            y = self.drop(y)
        return self.head(self.tail(y))


def net(folder, *edits, policy=mp.FP32, seed=0, steps=2):
    mp.manual_seed(seed)
    model = policy.cast(Net(edits))
    optimizer, batches = optim.SGD(model.parameters(), lr=0.05), rng(seed + ("data" in edits))
    with mp.audit(trace=folder), mp.use(policy):
        for i in range(steps):
            y = model(policy.cast(mp.tensor(batches.standard_normal((20, 8)).astype("float32"))))
            t = mp.tensor(batches.integers(0, 3, 20))
            loss = ops.nll_loss(ops.log_softmax(y, 1), t) if "split loss" in edits else ops.cross_entropy(y, t)
            if i and "late" in edits:
                loss = loss * 1.25
            loss.backward()
            optimizer.step(allow_missing=True)
            optimizer.zero_grad()
    return folder


LOSS = 12  # ops of a loss in two functions that are not the last of each
# what is done to A and to B; where they part: in one alone, or in an op of both; ops left in A, in B, and moved
PAIRS = [
    ("", "layer", "B model.extra linear forward", (0, 2, 0)),
    ("layer", "", "A model.extra linear forward", (2, 0, 0)),
    ("", "drop", "B model.drop dropout forward", (0, 1, 0)),
    ("drop", "late drop", "A model.drop dropout forward", (1, 1, 0)),
    ("", "useless", None, (0, 3, 0)),
    ("useless", "drop", "B model.drop dropout forward", (3, 1, 0)),
    ("", "swap", None, (0, 0, 2)),
    ("swap", "drop", "B model.drop dropout forward", (0, 1, 2)),
    ("swap", "layer, no norm", "B model.extra linear forward", (1, 2, 2)),
    ("", "split stem", None, (0, 2, 0)),
    ("split stem", "drop, skip", "B model.drop dropout forward", (2, 2, 0)),
    ("", "split loss", " net() cross_entropy backward (input)", (0, LOSS, 0)),
    ("split loss", "skip", "B model add forward", (LOSS, 1, 0)),
    ("", "half", "B model cast forward", (0, 2, 0)),
    ("", "tanh", " model relu forward", (0, 0, 0)),
    ("", "front", "B model.tail.0 linear forward", (0, 1, 0)),
    ("norms", "norms, front", "B model.tail.0 linear forward", (0, 2, 0)),
    ("front", "middle", "A model.tail.0 linear forward", (2, 0, 0)),
    ("", "middle, late", "A model.tail.1 linear forward", (1, 0, 0)),
    ("", "no norm", "A model.norm layer_norm forward", (1, 0, 0)),
    ("useless, swap", "data", " input of model.stem linear forward", (3, 0, 2)),
    ("", "late", "B net() mul forward", (0, 1, 0)),
    ("swap, middle", "front, split loss", "B model.tail.0 linear forward", (0, 2 + LOSS, 2)),
    ("layer", "drop, split stem, swap", "A model.extra linear forward", (1, 2, 2)),
]


@pytest.mark.parametrize(("number", "a", "b", "parts", "left"), [(i, *pair) for i, pair in enumerate(PAIRS)])
def test_programs_that_differ_are_lined_up(number, a, b, parts, left, tmp_path):
    folders = [net(tmp_path / name, *edits.split(", "), seed=number) for name, edits in (("a", a), ("b", b))]
    found = diff(*folders)
    assert (found.diverges and f"{found.diverges[1]} {found.diverges[2]}") == parts
    ops = found.unmatched and (len(found.unmatched.a), len(found.unmatched.b), found.unmatched.moved)
    assert (ops or (0, 0, 0)) == left
    names = {p.a.name: p.b.name for p in found.depth if p.a.role == "parameter"}
    updates = {p.a.module: p.b.module for p in found.depth if p.a.role == "update"}
    assert names == updates and names  # layers after another one have other names


@pytest.mark.parametrize(
    ("b", "parts"),
    [
        ([8, 16, 24, 32, 12], "model.3 linear forward"),
        ([8, 16, 32, 32, 12], "model.6 linear forward"),
        ([8, 16, 32, 12, 12], "model.9 linear forward"),
    ],
)
def test_a_layer_more_after_which_all_weights_are_others(b, parts, tmp_path):
    """Names, weights and values differ from there on; what is left says enough."""
    for name, widths in (("a", [8, 16, 32, 12]), ("b", b)):
        mp.manual_seed(0)
        layers = [(nn.Linear(n, m), nn.BatchNorm1d(m), nn.ReLU()) for n, m in pairwise(widths)]
        model = nn.Sequential(*[one for some in layers for one in some], nn.Linear(12, 3))
        with mp.audit(trace=tmp_path / name):
            model(mp.tensor(rng(0).standard_normal((20, 8)).astype("float32"))).sum().backward()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.diverges[1], str(found.diverges[2])) == ("B", parts)
    assert found.unmatched.a == [] and [x.op for x in found.unmatched.b] == ["linear", "batch_norm", "relu"]


def test_another_learning_rate_and_another_clipping(tmp_path):
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", lr=0.2))
    assert (found.first.a.role, str(found.first.a)) == ("update", "model.0.weight adam update")
    assert "its options, its state or its arithmetic differ" in found.why()
    found = diff(small(tmp_path / "c", clip=1e9), small(tmp_path / "d", clip=0.1))
    assert (found.first.iteration, found.first.a.role) == (0, "gradient")
    assert "clipping" in found.why()
    assert str(found.first.a) == "gradient of model.0.weight adam update"


def squares(folder, *values):
    with mp.audit(trace=folder):
        x = mp.tensor(np.array(values, "float16"))
        x * x + x
    return folder


def test_infinities_signs_of_zeros_and_shapes(tmp_path):
    a = squares(tmp_path / "a", 1.0, 0.0)
    found = diff(a, squares(tmp_path / "b", 1e4, 0.0))
    assert found.depth[-1].distance == math.inf
    assert (found.depth[1].a.nonfinite, found.depth[1].b.nonfinite) == (0, 1)
    found = diff(a, squares(tmp_path / "c", 1.0, -0.0))
    assert found.first.distance == 0 and "Only the signs of zeros" in found.why() and found.parted is None
    assert "Roundings explain all differences." in str(found)
    found = diff(a, squares(tmp_path / "d", 1.0))
    assert "Its shape is (2,) in A and (1,) in B." in found.why() and found.first.distance == math.inf


def test_what_changed_in_place_is_written_again(tmp_path):
    with mp.audit(trace=tmp_path):
        x = mp.ones(4)
        ops.relu(x)
        ops.exp(x)
        x[0] = 7.0
        ops.relu(x)
    lines = [line for step in Run(tmp_path).steps() for line in step.lines]
    assert [(line.role, line.op) for line in lines] == [
        ("input", "relu"), ("output", "relu"), ("output", "exp"), ("input", "relu"), ("output", "relu")
    ]  # fmt: skip


def test_a_killed_run_is_compared_as_far_as_it_goes(tmp_path):
    job(tmp_path / "a")
    job(tmp_path / "b")
    path = tmp_path / "b" / FILE
    content = path.read_bytes()
    path.write_bytes(content[: 2 * len(content) // 3 - 3000])
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.b.ended is None and found.a.ended == "" and found.first is None
    assert 2 <= len(found.steps) <= 4
    assert "ended early: the program was killed" in " ".join(str(found).split())
    assert found.steps[-1].tensors < found.steps[0].tensors
    assert found.same and found.only == [0, 0]  # what it did not come to is not held against it
    path.write_bytes(content[:2000] + b"\n" + content[2000:])
    with pytest.raises(ValueError, match=r"diff: line \d+ of .* is no line of a trace"):
        diff(tmp_path / "a", tmp_path / "b")


TRACED = """
import sys
import multiprocessing
import tinymp as mp
from tinymp import ops

def work(i):
    with mp.audit(trace=sys.argv[1]):
        ops.exp(mp.full((3,), float(i)))

if __name__ == "__main__":
    with mp.audit(trace=sys.argv[1]):
        ops.exp(mp.ones(2))
        several = [multiprocessing.get_context(how).Process(target=work, args=(i,))
                   for i, how in enumerate(("spawn", "fork", "spawn"))]
        for one in several:
            one.start()
        for one in several:
            one.join()
        ops.exp(mp.ones(2))
"""


def test_each_process_has_its_own_file(tmp_path):
    (tmp_path / "own.py").write_text(TRACED)
    for name in ("a", "b", "a"):
        subprocess.run([sys.executable, tmp_path / "own.py", tmp_path / name], check=True)
    files = {path.name: Run(path) for path in (tmp_path / "a").iterdir()}
    assert sorted(files) == ["trace.1.jsonl", "trace.2.jsonl", "trace.3.jsonl", "trace.jsonl"]
    steps = {name: [line.shape for step in run.steps() for line in step.lines] for name, run in files.items()}
    assert steps["trace.jsonl"] == [(2,)] * 4 and all(run.ended == "" for run in files.values())
    for name in sorted(files):
        assert steps[name][0] == ((2,) if name == FILE else (3,))
        found = diff(tmp_path / "a" / name, tmp_path / "b" / name)
        assert found.same and "other processes: trace." in " ".join(str(found).split())
    with mp.audit(trace=tmp_path / "a"), open(tmp_path / "a" / "trace.2.jsonl") as other:
        assert other.read().count("\n") > 2  # one audit does not touch another's
        again = "import sys, tinymp as mp\nwith mp.audit(trace=sys.argv[1]): mp.ones(5).exp()"
        subprocess.run([sys.executable, "-c", again, tmp_path / "a"], check=True)  # a process of its own, meanwhile
    assert [line.shape for step in Run(tmp_path / "a" / "trace.1.jsonl").steps() for line in step.lines] == [(5,)] * 2


def test_runs_of_other_machines_and_versions(tmp_path):
    """Headers, callers and places may hold what this version does not know."""
    a, b = job(tmp_path / "a"), job(tmp_path / "b")
    lines = [json.loads(text) for text in (b / FILE).read_text().splitlines()]
    lines[0]["environment"] |= {"tinymp": "9.0", "python": "3.20", "system": "Windows", "further": "1"}
    lines[0]["host"] = "other"
    for line in lines[1:]:
        if isinstance(line, dict) and "place" in line:
            line |= {"caller": f"C:\\moved\\{line['caller']}", "device": "gpu", "thread": 3}
    (b / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = diff(a, b)
    assert found.same and found.configuration["tinymp"][1] == "9.0" and found.configuration["further"] == ("-", "1")
    assert found.configuration["device"] == ("cpu", "gpu")


def test_what_cannot_be_compared(tmp_path):
    good = squares(tmp_path / "good", 1.0)
    with pytest.raises(FileNotFoundError, match=r"diff: there is no trace in '.*missing': `tinymp audit --trace --out"):
        diff(good, tmp_path / "missing")
    first, rest = (good / FILE).read_text().split("\n", 1)
    contents = {
        "other": (first.replace('trace":1', 'trace":2') + "\n" + rest, "expected a trace of format 1 in .*trace.:2"),
        "none": ('{"a": 1}\n', "expected a trace of format 1 in .*, which begins with"),
        "header": (
            first + "\n",
            "no tensor in common: .*good: 3 tensors, policies: MIXED, .*header: 0 tensors, policies: none",
        ),
    }
    for name, (content, message) in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(content)
        with pytest.raises(ValueError, match=f"diff: .*{message}"):
            diff(good, tmp_path / name)
    with mp.audit(trace=tmp_path / "foreign"):
        ops.exp(mp.ones(2))
    with pytest.raises(ValueError, match=r"diff: no tensor in common: .* Trace the same program"):
        diff(good, tmp_path / "foreign")


SCRIPT = """
import sys
import numpy as np
import tinymp as mp
from tinymp import nn, ops, optim

mp.manual_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    ops.mse_loss(model(mp.ones(3, 4)), mp.zeros(3, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tinymp.audit.report.panels", lambda audit: {})  # they take a second
    (tmp_path / "script.py").write_text(SCRIPT)
    for out, seed in (("a", "0"), ("b", "2")):
        assert main(["audit", "--trace", "--out", out, "script.py", seed]) == 0
    assert "trace.jsonl to " in capsys.readouterr().out
    assert main(["diff", "a", "b"]) == 1
    printed = capsys.readouterr().out
    assert max(map(len, printed.partition("Along depth")[0].splitlines())) <= 80
    assert "seed: 0 in A, 2 in B" in printed and "\nwrote diff.html to runs/diff" in printed
    page = (tmp_path / "runs" / "diff" / "diff.html").read_text().replace("<wbr>", "")
    assert "http" not in page.replace("http-equiv", "") and page.count("<table>") == page.count("</table>") == 2
    for text in (
        "First difference: step 0, model.0.weight",
        "another seed, or other weights",
        "model.2 linear backward",
    ):
        assert text in page
