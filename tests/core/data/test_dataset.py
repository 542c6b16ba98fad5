import numpy as np
import pytest

import tinymp as mp
from tinymp.data import TensorDataset

X = np.arange(30, dtype=np.float16).reshape(10, 3)
Y = np.arange(10)


@pytest.mark.parametrize("wrap", [np.asarray, mp.Tensor])
def test_tensor_dataset_gives_rows_in_their_dtype_and_shares_memory(wrap):
    dataset = TensorDataset(wrap(X), wrap(Y))
    x, y = dataset[4]
    assert isinstance(x, mp.Tensor) and x.dtype == np.float16 and y.dtype == Y.dtype and y.shape == ()
    np.testing.assert_array_equal(x.array, X[4])
    assert y.item() == 4 and np.may_share_memory(dataset.tensors[0].array, X)
    assert len(dataset) == len(list(dataset)) == 10  # IndexError beyond the end stops the iteration
