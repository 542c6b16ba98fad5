"""The CUDA twin of local response normalisation against its definition."""

import pytest

from oracle import randn
from tinymp import ops
from twins import check_twin

pytestmark = pytest.mark.usefixtures("gpu")

KERNELS = {"local_response_norm_forward", "local_response_norm_backward"}


@pytest.mark.parametrize("chwn", [False, True])
@pytest.mark.parametrize("beta", [0.75, 0.6])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((8, 7, 2, 3), 5), ((3, 4, 4, 4), 2), ((2, 3, 5, 1), 16), ((1, 9, 1, 1), 1)],  # by packs, one by one; one window
)
def test_local_response_norm(shape, size, beta, chwn):
    check_twin(
        lambda x: ops.local_response_norm(x, size, 0.5, beta, 2.0),
        randn(*shape),
        kernels=KERNELS,
        length=20,
        grad_length=60,
        chwn=chwn,
    )


def test_views_and_wide_windows():
    """Memory with gaps; and more channels in a window than the kernels read for each value."""
    check_twin(lambda x: ops.local_response_norm(x[:, 1:], 3), randn(4, 5, 3, 2), kernels=KERNELS, length=20)
    check_twin(lambda x: ops.local_response_norm(x, 17), randn(2, 20, 3), length=40)
