"""The same steps in PyTorch (cuDNN, cuBLAS, AMP), which benchmarks/gpu.py and steps.py compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

try:
    import torch
    from torch.nn import functional
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    torch.backends.cudnn.benchmark = True  # cuDNN tries its algorithms and takes the fastest
    torch.backends.cudnn.allow_tf32 = False  # FP32 is FP32, as in tinymp

Work = dict[str, Callable[[], Any]]  # what is timed, by name


def shared(x: Any) -> Any:
    """An array of the GPU as a PyTorch tensor in the same memory; of the stand-in for a GPU, a copy on the CPU."""
    x = x if min(x.strides, default=0) >= 0 else x.copy()  # PyTorch aborts on negative strides
    return torch.from_dlpack(x) if torch.cuda.is_available() else torch.from_numpy(x.get())


def autocast(dtype: str, device: str = "cpu", **options: Any) -> Any:
    """PyTorch's autocast to "float16" or "bfloat16"; for "" none."""
    return torch.autocast(device, dtype=getattr(torch, dtype or "bfloat16"), enabled=bool(dtype), **options)


class Step:
    """A training step that can be called: under autocast to a dtype, on a GPU with GradScaler, as in PyTorch's
    documentation of AMP.
    """

    def __init__(self, loss: Callable[[], Any], optimizer: Any, dtype: str, device: str = "cpu") -> None:
        self.loss, self.optimizer, self.dtype, self.device = loss, optimizer, dtype, device
        self.scaler = torch.amp.GradScaler(device, enabled=bool(dtype) and device != "cpu")

    def backward(self, **options: Any) -> None:
        with autocast(self.dtype, self.device, **options):
            loss = self.loss()
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def __call__(self) -> None:
        self.backward()
        self.update()
        self.optimizer.zero_grad()


def training(network: Callable[[Any], Any], inputs: Any, labels: Any, mixed: bool) -> Work:
    """Steps with SGD in FP32 or with AMP, and, on a GPU, with forward and backward as a CUDA graph.

    inputs: images, in either of PyTorch's memory orders, of which the better one counts; or words.
    """
    x, y = shared(inputs), shared(labels)
    orders = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
    work: Work = {}
    for name, order in orders.items() if x.ndim == 4 else [("PyTorch", torch.contiguous_format)]:
        work[name] = _step(network, x, y, order, mixed)
        if x.is_cuda:
            work[f"{name}, graph"] = _graph(_step(network, x, y, order, mixed, fused=True))
    return work


def _step(network: Callable[[Any], Any], x: Any, y: Any, order: Any, mixed: bool = True, **options: Any) -> Step:
    model = network(torch.nn).to(x.device, memory_format=order)
    x = x.float().contiguous(memory_format=order) if x.is_floating_point() else x
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
    dtype = "float16" if mixed else ""
    return Step(lambda: functional.cross_entropy(model(x), y), optimizer, dtype, x.device.type)


def _graph(step: Step) -> Callable[[], None]:
    """As PyTorch's notes on CUDA graphs have it: the scaler and the (fused) optimizer stay outside, gradients where
    they were captured, and autocast caches no weights.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step.optimizer.zero_grad()
            step.backward(cache_enabled=False)
            step.update()
    torch.cuda.current_stream().wait_stream(aside)
    step.optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.backward(cache_enabled=False)

    def replay() -> None:
        graph.replay()
        step.update()

    return replay


def peak_memory(network: Callable[[Any], Any], shape: Sequence[int]) -> int:
    """Bytes that training holds at once at most, on a real GPU, in PyTorch's usual memory order."""
    images, labels = torch.randn(*shape, device="cuda"), torch.randint(0, 10, shape[:1], device="cuda")
    step = _step(network, images, labels, torch.contiguous_format)
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()
