"""mp.info()."""

import tinymp as mp


def test_info():
    info = mp.info()
    assert info["tinymp"] == mp.__version__
    assert all(isinstance(value, str) for value in info.values())
    assert str(info).split()[:2] == ["tinymp", mp.__version__]
