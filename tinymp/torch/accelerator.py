"""torch.accelerator: the GPU, by PyTorch's newer names."""

from .cuda import is_available
from .device import device
from .space import fill, names


def current_accelerator(check_available: bool = False) -> device | None:
    """The GPU's device, or None where there is none."""
    return device("cuda") if is_available() else None


fill(globals(), "torch.accelerator", names("torch.cuda", "device_count synchronize"))
