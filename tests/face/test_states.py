"""The state of PyTorch's optimizers. That training goes on with it: more/test_rules.py."""

import pytest

from tinymp import nn, optim
from tinymp.torch.states import from_pytorch

pytestmark = [pytest.mark.peer, pytest.mark.cpu]
torch = pytest.importorskip("torch")


def both(rule):
    """In PyTorch and here: a network, and an optimizer of two groups, with a rate of their own."""
    found = []
    for space, rules in ((torch.nn, torch.optim), (nn, optim)):
        m = space.Sequential(space.Linear(5, 8), space.Linear(8, 3))
        groups = [{"params": m[0].parameters()}, {"params": m[1].parameters(), "lr": 2e-3}]
        found += [m, getattr(rules, rule)(groups)]
    return found


def test_groups_and_what_does_not_fit():
    theirs, their_rule, ours, our_rule = both("AdamW")
    our_rule.load_state_dict(from_pytorch(our_rule, their_rule.state_dict()))
    assert [g["lr"] for g in our_rule.param_groups] == [1e-3, 2e-3]
    adam = optim.Adam([{"params": m.parameters()} for m in (ours[0], ours[1])])
    with pytest.raises(ValueError, match=r"expected the state of Adam, .* use optim\.AdamW"):
        from_pytorch(adam, their_rule.state_dict())
    one = torch.optim.AdamW(theirs.parameters())
    with pytest.raises(ValueError, match=r"expected groups with \[2, 2\] parameters, got \[4\]"):
        our_rule.load_state_dict(from_pytorch(our_rule, one.state_dict()))
