"""Ten programs in the style of public ones: in PyTorch and, their imports changed, here, 20 losses side by side."""

import pytest

from ported import PROGRAMS, row

pytest.importorskip("torch")
pytest.importorskip("tinymp.torch.nn")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_as_in_pytorch(name):
    found = row(name)
    assert len(found["PyTorch"]) == len(found["tinymp"]) == 20
    assert found["lines edited"] <= (5 if name == "amp" else 0)
    assert found["largest share of what is allowed"] <= 1, found
