"""Updates in parts on a CPU have the bits of the definition."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import fast_path, nn, optim
from tinymp.fast.cpu import threads

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(threads._set is None, reason="another BLAS")]


class LARS(optim.SGD):
    """A rule that sums."""

    def update(self, w, g, state, group):
        return super().update(w, g / np.sqrt((g * g).sum()), state, group)


RULES = {
    "SGD": (lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01), True),
    "AMSGrad": (lambda p: optim.Adam(p, 0.1, amsgrad=True), True),
    "AdamW": (lambda p: optim.AdamW(p, 0.1), True),
    "Adagrad": (lambda p: optim.Adagrad(p, 0.1), True),
    "NAdam": (lambda p: optim.NAdam(p, 0.1), True),
    "LARS": (lambda p: LARS(p, 0.1, momentum=0.9), False),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
def test_parts(monkeypatch, rule, policy):
    make, divided = RULES[rule]
    found, shared, original = [], [], threads._shared
    monkeypatch.setattr(threads, "_shared", lambda f, items, n: shared.append(n) or original(f, items, n))
    before = threads._get()
    threads._set(2)
    try:
        for off in (set(), {"updated"}):
            monkeypatch.setattr(fast_path, "off", off)
            w = policy.cast(nn.Parameter(mp.tensor(randn(1024, 1024).astype(np.float32))))
            optimizer = make([w])
            for seed in range(2):
                w.grad = mp.tensor(randn(1024, 1024, seed=seed).astype(w.array.dtype))
                optimizer.step()
            state = [x.tobytes() for x in optimizer.state_dict()["state"][0].values() if hasattr(x, "tobytes")]
            found.append((w.master.tobytes(), w.array.tobytes(), state))
    finally:
        threads._set(before)
    assert found[0] == found[1]
    assert len(shared) == 2 * divided
