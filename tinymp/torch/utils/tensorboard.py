"""torch.utils.tensorboard: the SummaryWriter of the package tensorboardX, whose methods take Tensors here."""

from typing import Any

from ...tensor import Tensor


def __getattr__(name: str) -> Any:
    if name != "SummaryWriter":
        raise AttributeError(f"torch.utils.tensorboard has no attribute '{name}' in tinymp")
    from tensorboardX import SummaryWriter  # type: ignore[import-not-found,import-untyped,unused-ignore]

    methods = {key: _of_arrays(x) for key, x in vars(SummaryWriter).items() if key.startswith("add_")}
    return type(name, (SummaryWriter,), methods)


def _of_arrays(method: Any) -> Any:
    def array(x: Any) -> Any:
        return x.numpy() if isinstance(x, Tensor) else x

    return lambda *args, **options: method(*map(array, args), **{key: array(x) for key, x in options.items()})
