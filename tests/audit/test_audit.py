"""mp.audit(): everything together, on a whole training."""

import json

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit import report
from tinymp.events import here
from tinymp.study.formats import SCALED


def train(policy=mp.MIXED, scaler=None, steps=3, device="cpu"):
    mp.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    model = policy.cast(model).to(device)
    optimizer, scaler = optim.Adam(model.parameters()), scaler or optim.DynamicLossScaler(2.0**24)
    x = mp.tensor(np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype(policy.storage)).to(device)
    with mp.use(policy):
        for _ in range(steps):
            scaler.scale(ops.cross_entropy(model(x), mp.tensor([0, 1, 2, 0, 1]).to(device))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@pytest.fixture
def unrendered(monkeypatch):
    """Pictures are drawn, but no SVG is made of them, which takes a second."""
    monkeypatch.setattr(report, "svg", lambda figure: "<svg>")


@pytest.mark.cpu  # elsewhere the copies to a device are ops, too, under the policy in use before
@pytest.mark.parametrize("policy", [mp.MIXED, mp.FP32, mp.STOCHASTIC_ROUNDING])
def test_everything_at_once(policy, tmp_path, unrendered):
    shadow = policy is not mp.MIXED
    with mp.audit(shadow=shadow) as a:
        train(policy, optim.NoLossScaler() if shadow else None)
    content = json.loads(json.dumps(a.as_dict(), allow_nan=False))
    assert content["summary"]["iterations"] == 3
    assert len(content["ledger"]) == len(a.ledger) > 10
    assert (a.shadow is not None) is shadow
    assert bool(content["shadow"]) is (shadow and policy is not mp.FP32)  # FP32 has nothing to be compared with
    assert content["bytes"]["measured"]["weights"]
    assert content["policy"] == str(policy)
    assert content["products"] and content["histograms"]["tensors"]
    if policy is mp.MIXED:
        assert content["scale"]["skipped"] == a.scale.skipped != []
        assert content["scale"]["causes"][0]["cause"] == "loss scale too high"
    text = str(a)
    assert "a.report(path)" in text and len(text.splitlines()) < 60
    a.report(path := tmp_path / "audit.html", title="A small net")
    page = path.read_text("utf-8")
    assert "A small net" in page and "batch_norm" in page and page.count("<svg>") > 5


def test_an_empty_audit(tmp_path):
    with mp.audit(shadow=True) as a:
        pass
    json.dumps(a.as_dict(), allow_nan=False)
    assert str(a) and a.advise() == []
    a.report(tmp_path / "audit.html")


def test_on_a_gpu(gpu):
    """The same code audits a GPU run, and finds what it finds on the CPU."""
    with mp.audit(shadow=True) as host:
        train()
    with mp.audit(shadow=True) as device:
        train(device="gpu")
    moved = {"to"}
    rows = [
        [(r.module, r.op, r.phase, r.calls, r.rounded) for r in a.ledger if r.op not in moved] for a in (host, device)
    ]
    assert rows[0] == rows[1]
    assert device.scale.skipped == host.scale.skipped != []
    assert device.histograms.best_scale() == host.histograms.best_scale()
    assert device.shadow.worst(1)[0].inherited.mean == pytest.approx(host.shadow.worst(1)[0].inherited.mean, rel=0.1)
    assert {r: sum(n.values()) for r, n in device.bytes.measured.items()} == {
        r: pytest.approx(sum(n.values()), rel=0.02) for r, n in host.bytes.measured.items()
    }
    assert [p.as_dict()["flops"] for p in device.products.rows] == [p.as_dict()["flops"] for p in host.products.rows]
    json.dumps(device.as_dict(), allow_nan=False)


@pytest.mark.parametrize("full", ["trace", "trace later"])
def test_a_full_disk_ends_the_audit_and_nothing_stays_set(full, tmp_path):
    if full == "trace":
        (tmp_path / "trace.jsonl").symlink_to("/dev/full")

    def program():
        with mp.audit(trace=tmp_path) as a:
            if full == "trace later":
                a._trace._file.close()
                a._trace._file = open("/dev/full", "w", buffering=1)  # noqa: SIM115
            train(steps=1)
            raise RuntimeError

    with pytest.raises(OSError, match=r"No space left on device; make room, or write to another disk: '/"):
        program()
    assert not here.observers and not here.inside


def test_arrays_without_elements(tmp_path, unrendered):
    with mp.audit(shadow=True, formats=list(SCALED), trace=tmp_path / "trace") as a:
        for y in (
            nn.LSTM(8, 8)(mp.ones(3, 2, 8), lengths=[2, 2])[0],  # without a last step
            mp.ones(3, 0) @ mp.ones(0, 3),
            mp.ones(0, 3, 4) @ mp.ones(0, 4, 2),
            nn.Linear(4, 0)(mp.ones(3, 4)),
            nn.Conv2d(3, 4, 3)(mp.ones(0, 3, 5, 5)),
            mp.ones(0, 4).sum(0) + mp.ones(4, 0).softmax(1).sum(),
        ):
            mp.MIXED.cast(y)
            if y.requires_grad:
                y.sum().backward()
    assert str(a)
    a.report(tmp_path / "audit.html")
