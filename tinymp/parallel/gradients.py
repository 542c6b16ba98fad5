"""Data parallel training: every process has the whole model and a part of each batch, and gradients are averaged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..arguments import instance, number
from ..autograd import Array, Op
from ..backend import __version__
from ..checkpoint.saving import bytes_of
from ..dtypes import HALVES, NAMES, float16, float32
from ..events import Exchange, Observer, here, observe, running, tell, under
from ..gradients import added, joined
from ..nn.module import Module
from ..ops.more.graph import uses
from ..parameter import Parameter
from ..precision import store, widen
from .group import Group, Pending

FIRST = 1 << 20  # bytes of the first bucket: small, so that sending begins early


class Bucket:
    """Parameters whose gradients travel together, in one array of one dtype."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype, self.size = dtype, 0
        self.params: list[Parameter] = []
        self.begin()

    def begin(self) -> None:
        """Before a backward pass. Each has an array of its own: gradients are views of it."""
        self.buffer: Any = None
        self.sent: Pending | None = None
        self.left = {id(p) for p in self.params}  # whose gradients are not there yet

    def add(self, p: Parameter) -> tuple[Bucket, slice]:
        place = slice(self.size, self.size + p.array.size)
        self.params.append(p)
        self.size = place.stop
        return self, place


class DistributedDataParallel(Observer):
    """Holds the copies of a model in several processes together: a backward pass leaves in `grad` the mean over all.

        model = policy.cast(net())
        ddp = mp.parallel.DistributedDataParallel(model, group)
        ...
        scaler.scale(loss).backward()   # the gradients are averaged when this returns
        scaler.step(optimizer)          # so all processes make the same step

    Unlike PyTorch's it is no module: the model stays what it was. It begins with rank 0's weights and buffers. Where
    gradients are FP16, `policy.exchange` of the parameter decides (NVG section 3): FP32 adds them up in FP32, and
    `grad` is FP32, not rounded again; FP16 divides them by the number of processes first, so that no sum overflows that
    one of a single process would not, halves what travels, and rounds at each division and addition.

    Batch norm uses each process's own batch; its running statistics are each process's own, until `sync_buffers`.

    model           on the CPU, with dense gradients. ValueError, in all processes, where one has another model, policy
                    or version
    bucket_cap_mb   the size of a bucket in MiB; the first has one

    passes, sent, waited   backward passes so far, the bytes of their gradients as they travelled, and the seconds for
                           which this process waited at their ends
    """

    def __init__(self, model: Any, group: Group, bucket_cap_mb: float = 25.0) -> None:
        where = type(self).__name__
        self.model, self.group = instance(where, "model", model, Module), instance(where, "group", group, Group)
        self.cap = number(where, "bucket_cap_mb", bucket_cap_mb, 0, above=True) * (1 << 20)
        self.params: list[Parameter] = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise ValueError(f"{where}: expected a model with parameters to train, got none")
        self.passes = self.sent = 0
        self.waited = 0.0
        self._own = {id(p): i for i, p in enumerate(self.params)}
        self._buckets: list[Bucket] | None = None  # made after the first backward pass, in the order that it showed
        self._places: dict[int, tuple[Bucket, slice]] = {}
        self._alone = group.size == 1
        self._run: Any = None
        self._last: Op | None = None  # the op of which the gradients are on their way to the leaves
        group.first(
            where,
            version=f"tinymp {__version__}, NumPy {np.__version__}",
            parameters=[f"{p.name} {p.shape} {p.dtype}, {p.policy}" for p in self.params],
        )
        if not self._alone:
            if any(p.device != "cpu" for p in self.params):
                raise ValueError(f"{where}: expected a model on the CPU, where MPI sends arrays, got one on the GPU")
            self._share(model.state_dict())
            self.verify()
            group.closing.enter_context(observe(self))

    # ---- weights

    def _share(self, own: dict[str, np.ndarray]) -> None:
        described = self.group.tell([[k, x.dtype.name, x.shape] for k, x in own.items()])[0]
        state = {}
        for name, dtype, shape in described:
            state[name] = np.empty(shape, dtype) if self.group.rank else np.array(own[name], order="C")
            self.group.broadcast(state[name])
        if self.group.rank:
            self.model.load_state_dict(state, strict=False)

    def verify(self) -> None:
        """RuntimeError, in all processes, where the weights of one (copies and masters) are not, bit for bit, those of
        rank 0.
        """
        weights = {p.name or str(i): p.array for i, p in enumerate(self.params)}
        weights |= {f"{name}, master": p.master for name, p in zip(weights, self.params) if p.master_nbytes}
        digests = {k: hashlib.sha256(bytes_of(x)).hexdigest() for k, x in weights.items()}
        for rank, told in enumerate(found := self.group.tell(digests)):
            differ = [name for name in told if found[0].get(name, told[name]) != told[name]]
            if differ:
                raise RuntimeError(
                    f"DistributedDataParallel: {len(differ)} weights of rank {rank} are not those of rank 0, the first "
                    f"is {differ[0]!r}: change weights in all processes alike"
                )

    def sync_buffers(self) -> None:
        """Take rank 0's buffers, such as batch norm's running statistics."""
        state, buffers = self.model.state_dict(), {name for name, _ in self.model.named_buffers()}
        self._share({name: x for name, x in state.items() if name in buffers})

    # ---- gradients

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block gradients stay this process's own: for all backward passes that add up but the last."""
        before = self._alone
        try:
            self._alone = True
            yield
        finally:
            self._alone = before

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "backward" and not self._alone and here.backward is not None:
            if here.backward is not self._run:
                self._begin(here.backward)
            self._look()
            self._last = op

    def _begin(self, run: Any) -> None:
        self._run, self._last = run, None
        found = uses(run.root.grad_fn)
        self._left = {key: n for key, (_, n) in found.items() if key in self._own}  # gradients that are still to come
        self._order: list[int] = []
        for bucket in self._buckets or ():  # an error may have ended the pass before
            bucket.begin()

    def _look(self) -> None:
        """The gradients of the op before have arrived: which are complete?"""
        for edge in self._last.edges if self._last is not None else ():
            if id(edge) in self._left:
                self._left[id(edge)] -= 1
                if not self._left[id(edge)] and id(edge) in self._run.leaves:
                    self._order.append(self._own[id(edge)])
                    if self._buckets is not None:
                        slot = self._run.leaves[id(edge)]
                        # no op still to come adds to it
                        dx = slot[1] = under(running, edge, joined, slot[1], edge.array)
                        self._fill(edge, dx if edge.grad_array is None else added(edge.grad_array, dx))
        self._last = None

    def _fill(self, p: Parameter, gradient: Any) -> None:
        """Put a gradient into its bucket, and send those that are full, in their order."""
        if hasattr(gradient, "rows"):
            raise RuntimeError(f"DistributedDataParallel: expected dense gradients, got a sparse one of `{p.name}`")
        bucket, place = self._places[id(p)]
        if bucket.buffer is None:
            bucket.buffer = np.empty(bucket.size, bucket.dtype)
        bucket.buffer[place] = under(running, Exchange(p), self._outgoing, p, gradient).reshape(-1)
        bucket.left.discard(id(p))
        for bucket in self._buckets or ():
            if bucket.left:
                break
            if bucket.sent is None:
                self.sent += bucket.buffer.nbytes
                bucket.sent = self.group.start("all_reduce", bucket.buffer, "sum")

    def _outgoing(self, p: Parameter, x: Array) -> Array:
        x = store(widen(x) / self.group.size, like=p.array) if _travels(p) == float16 else widen(x)
        if here.inside:
            tell("added", x, None, NAMES[x.dtype])
        return x

    def summed(self, run: Any) -> None:
        if run is not self._run or not self._left:
            return
        self._run = self._last = None  # the last op's gradients are in `grad` already
        if missing := [p for p in self.params if p.grad_array is None]:
            raise RuntimeError(
                f"DistributedDataParallel: parameter `{missing[0].name}` {missing[0].shape} got no gradient: the loss "
                "does not depend on it. Freeze it before with requires_grad_(False)"
            )
        began = time.perf_counter()
        self._same_scale()
        if self._buckets is None:
            self._plan()
        assert self._buckets is not None
        for p in (p for bucket in self._buckets for p in bucket.params if id(p) in bucket.left):
            self._fill(p, p.grad_array)
        for bucket in self._buckets:
            assert bucket.sent is not None
            bucket.sent.wait()
            if bucket.dtype != float16:
                bucket.buffer /= self.group.size
            for p in bucket.params:
                p.replace_grad(bucket.buffer[self._places[id(p)][1]].reshape(p.shape), p.grad_scale)
            bucket.begin()
        self.waited += time.perf_counter() - began
        self.passes += 1

    def _plan(self) -> None:
        order = self.group.tell(list(dict.fromkeys([*self._order, *range(len(self.params))])))[0]
        buckets: list[Bucket] = []
        filling: dict[Any, Bucket] = {}  # by dtype
        for p in (self.params[i] for i in order):
            dtype, full = _travels(p), self.cap if len(buckets) > len(filling) else min(FIRST, self.cap)
            bucket = filling.get(dtype)
            if bucket is None or bucket.size * bucket.dtype.itemsize >= full:
                bucket = filling[dtype] = Bucket(dtype)
                buckets.append(bucket)
            self._places[id(p)] = bucket.add(p)
        self._buckets = sorted(buckets, key=lambda bucket: order.index(self._own[id(bucket.params[-1])]))
        for bucket in self._buckets:
            bucket.begin()

    def _same_scale(self) -> None:
        """RuntimeError where the processes' loss scales differ."""
        scale = float(self.params[0].grad_scale)
        both = np.array([scale, -scale])
        self.group.all_reduce(both, "max")
        if both[0] != -both[1]:
            raise RuntimeError(
                f"DistributedDataParallel: the processes scale their losses by {-both[1]:g} to {both[0]:g}: give "
                "all the same scaler, load its state in all, and step within the group's `with` block"
            )


def _travels(p: Parameter) -> np.dtype:
    return float16 if p.dtype == p.policy.exchange == float16 else float32 if p.dtype in HALVES else p.dtype
