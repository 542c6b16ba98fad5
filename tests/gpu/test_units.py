"""Special instructions (conversions, Tensor Cores, asynchronous copies) against NumPy."""

from gpu import units


def test_instructions(gpu):
    assert set(units.check().values()) == {0}
