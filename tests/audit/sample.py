"""A training step on arrays without memory, for instruments that only count."""

import numpy as np

import tinymp as mp
from tinymp import optim
from tinymp.audit.listener import Listener


def rehearse(make, shape, instrument, policy=mp.MIXED):
    """One step with Adam of the model that `make` builds, on floating inputs of this shape."""
    with mp.device("meta"), mp.use(policy), Listener([instrument]):
        model = policy.cast(make())
        model(policy.cast(mp.tensor(np.broadcast_to(np.float32(0), shape)))).sum().backward()
        optim.Adam(model.parameters()).step()
    return instrument
