"""What benchmarks/gpu.py compares with: the same work in PyTorch (cuDNN, cuBLAS, AMP), on the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .timing import Work

try:
    import torch
    from torch.nn import functional
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    torch.backends.cudnn.benchmark = True  # cuDNN tries its algorithms and takes the fastest
    torch.backends.cudnn.allow_tf32 = False  # FP32 is FP32, as in tinymp


def shared(x: Any) -> Any:
    """An array of the GPU as a PyTorch tensor in the same memory; of the stand-in for a GPU, a copy on the CPU."""
    x = x if min(x.strides, default=0) >= 0 else x.copy()  # PyTorch aborts on negative strides
    return torch.from_dlpack(x) if torch.cuda.is_available() else torch.from_numpy(x.get())


def orders() -> dict[str, Any]:
    """The memory orders of images that PyTorch knows: the better one counts."""
    return {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


def training(network: Callable[[Any], Any], inputs: Any, labels: Any, mixed: bool) -> Work:
    """A training step with SGD in FP32, or under autocast with GradScaler as in PyTorch's documentation of AMP, and, on
    a GPU, with forward and backward as a CUDA graph. inputs: images, in either memory order, or words.
    """
    x, y = shared(inputs), shared(labels)
    work: Work = {}
    for name, order in orders().items() if x.ndim == 4 else [("PyTorch", torch.contiguous_format)]:
        work[name] = _step(network, x, y, order, mixed)
        if x.is_cuda:
            work[f"{name}, graph"] = _graph(network, x, y, order, mixed)
    return work


class _Trained:
    """A model, its optimizer, its scaler and its batch in a memory order."""

    def __init__(self, network: Callable[[Any], Any], x: Any, y: Any, order: Any, mixed: bool, **options: Any) -> None:
        self.device, self.y, self.mixed = x.device.type, y, mixed
        self.model = network(torch.nn).to(x.device, memory_format=order)
        self.x = x.float().contiguous(memory_format=order) if x.is_floating_point() else x
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, **options)
        self.scaler = torch.amp.GradScaler(self.device, enabled=mixed)

    def backward(self, **options: Any) -> None:
        with torch.autocast(self.device, dtype=torch.float16, enabled=self.mixed, **options):
            loss = functional.cross_entropy(self.model(self.x), self.y)
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _step(network: Callable[[Any], Any], x: Any, y: Any, order: Any, mixed: bool = True) -> Callable[[], None]:
    own = _Trained(network, x, y, order, mixed)

    def step() -> None:
        own.backward()
        own.update()
        own.optimizer.zero_grad()

    return step


def _graph(network: Callable[[Any], Any], x: Any, y: Any, order: Any, mixed: bool) -> Callable[[], None]:
    """As PyTorch's notes on CUDA graphs have it: the scaler and the (fused) optimizer stay outside, gradients where
    they were captured, and autocast caches no weights.
    """
    own, aside = _Trained(network, x, y, order, mixed, fused=True), torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            own.optimizer.zero_grad()
            own.backward(cache_enabled=False)
            own.update()
    torch.cuda.current_stream().wait_stream(aside)
    own.optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        own.backward(cache_enabled=False)

    def step() -> None:
        graph.replay()
        own.update()

    return step


def peak_memory(network: Callable[[Any], Any], shape: Sequence[int]) -> int:
    """Bytes that training holds at once at most, on a real GPU, in PyTorch's usual memory order."""
    images, labels = torch.randn(*shape, device="cuda"), torch.randint(0, 10, shape[:1], device="cuda")
    step = _step(network, images, labels, torch.contiguous_format)
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()
