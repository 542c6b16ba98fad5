"""torch.utils.tensorboard: the SummaryWriter of the package tensorboardX, whose methods take Tensors here."""

from typing import Any

from ...tensor import Tensor


def _of_arrays(method: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        arrays = {name: x.numpy() if isinstance(x, Tensor) else x for name, x in options.items()}
        return method(*[x.numpy() if isinstance(x, Tensor) else x for x in args], **arrays)

    return call


def __getattr__(name: str) -> Any:
    if name != "SummaryWriter":
        raise AttributeError(f"torch.utils.tensorboard has no attribute '{name}' in tinymp")
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("torch.utils.tensorboard: the writer is tensorboardX's: pip install tensorboardX") from None
    of_arrays = {name: _of_arrays(x) for name, x in vars(SummaryWriter).items() if name.startswith("add_")}
    return type(name, (SummaryWriter,), of_arrays)
