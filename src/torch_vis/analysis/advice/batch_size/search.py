"""A model run with a batch of any size, and the search for the largest batch that fits a memory."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_vis._trace import Trace
from torch_vis.api import trace
from torch_vis.capture.session import run_backward
from torch_vis.errors import TorchVisError, UsageError
from torch_vis.graph.text import size
from torch_vis.progress import progress

# read (steps, batch, features) unless told otherwise
STEPS_FIRST = (torch.nn.RNNBase, torch.nn.MultiheadAttention)


class BatchMemory(NamedTuple):
    """One batch size: the peak predicted from shapes, and what a run of it measured; None where it was not run.

    ``predicted_bytes`` is what the allocator gives out or, on CUDA, holds: tensors, kernel scratch, rounding.
    ``tensor_bytes`` is what tensors hold of it, and ``measured_bytes`` what they held when it ran.
    """

    batch: int
    predicted_bytes: int
    tensor_bytes: int
    measured_bytes: int | None = None
    time_ns: int | None = None
    per_second: float | None = None

    @property
    def needed_bytes(self) -> int:
        """What is needed as far as is known: predicted, with what tensors held in truth where it was run."""
        return self.predicted_bytes + (
            0 if self.measured_bytes is None else self.measured_bytes - self.tensor_bytes
        )

    @property
    def ratio(self) -> float:
        """How many bytes it takes for each one predicted; 1 where it was not run."""
        return self.needed_bytes / max(1, self.predicted_bytes)


class BatchSizes(NamedTuple):
    """The batch sizes that a model takes: ``least``, and from there on in strides of ``unit``."""

    least: int
    unit: int
    why: str
    """What the model says to others; empty where all run."""


class BatchedRun:
    """A run with a batch of any size. Dimension ``dim`` of the inputs is the batch; None to find out."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dim: int | None,
        backward: bool,
        loss: Callable[[Any], Any] | None,
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.backward, self.loss = backward, loss
        self._predicted: dict[int, BatchMemory] = {}
        self.reader = ""
        """The module from which the dimension is known, if that is how."""
        self.dim = 0 if dim is None else dim
        self.sample = self._sample()
        if dim is None:
            self.reader = self._steps_first()
            if self.reader:
                self.dim = 1
                self.sample = self._sample()

    def inputs(self, batch: int, *, fake: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The sample's tensors with another number of samples; on ``fake``, with contents that nobody looks at."""

        def resized(leaf: Any) -> Any:
            dim = self._dim_of(leaf)
            if dim is None:
                return leaf
            with torch.no_grad():
                if fake:
                    shape = (*leaf.shape[:dim], batch, *leaf.shape[dim + 1 :])
                    tensor = torch.empty(shape, dtype=leaf.dtype, device=leaf.device)
                else:
                    rows = torch.arange(batch, device=leaf.device) % self.sample
                    tensor = leaf.detach().index_select(dim, rows)
            return tensor.requires_grad_(leaf.requires_grad)

        return pytree.tree_map(resized, (self.args, self.kwargs))

    def traced(self, batch: int, *, model: Callable[..., Any] | None = None) -> Trace:
        """The trace of a run: of the model by shapes alone, or of another with numbers."""
        args, kwargs = self.inputs(batch, fake=model is None)
        return trace(
            model or self.model,
            *args,
            kwargs=kwargs,
            backward=self.backward,
            loss=self.loss,
            fake=model is None,
            keep=False,
        )

    def predicted(self, batch: int) -> BatchMemory:
        """The peak that is predicted for a batch size."""
        if batch not in self._predicted:
            memory = self.traced(batch).memory()
            cuda = sum(device.reserved_bytes for device in memory.cuda)
            self._predicted[batch] = BatchMemory(
                batch, cuda or memory.allocator_peak_bytes, memory.peak_bytes
            )
        return self._predicted[batch]

    def run(self, model: Callable[..., Any], batch: int) -> None:
        """Run it for real."""
        args, kwargs = self.inputs(batch)
        output = model(*args, **kwargs)
        if self.backward or self.loss is not None:
            run_backward(output, self.loss)

    def sizes(self) -> BatchSizes:
        """The sizes that the model takes, found by trying few: from 1 on, from 2 on, or else whole samples."""
        refusal_of_1, refusal_of_2 = self._refusal(1), self._refusal(2)
        if not refusal_of_1 and not refusal_of_2:
            return BatchSizes(1, 1, "")
        if not refusal_of_2 and self.sample > 1 and not self._refusal(3):
            return BatchSizes(2, 1, f"of 1 the model says {refusal_of_1}")
        self.predicted(self.sample)
        why = f"of 1 the model says {refusal_of_1}" if refusal_of_1 else f"of 2 the model says {refusal_of_2}"
        twice = self._refusal(2 * self.sample)
        if twice:
            raise UsageError(
                f"a batch of {self.sample} runs, others do not: {why}; of {2 * self.sample}, {twice}. Pass what goes "
                "with the batch (labels, masks) as arguments, and see dim="
            )
        return BatchSizes(self.sample, self.sample, why)

    def _refusal(self, batch: int) -> str:
        """What the model says to a batch that it does not take; its own sample it has to take."""
        try:
            self.predicted(batch)
        except TorchVisError:
            raise
        except Exception as error:
            if batch == self.sample:
                raise
            return " ".join(f"{type(error).__name__}: {error}".splitlines()[0].split())
        return ""

    def _sample(self) -> int:
        """The size of the batch that was given: that of the first input that has such a dimension."""
        tensors = [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        sizes = [leaf.shape[self.dim] for leaf in tensors if leaf.dim() > self.dim]
        if any(sizes):
            return next(size for size in sizes if size)
        if sizes:
            raise UsageError(
                f"the batch is empty: dimension {self.dim} of the inputs has no elements; pass a sample batch with one "
                "sample at least"
            )
        raise UsageError(
            f"none of the inputs is a tensor with a dimension {self.dim} for the batch; pass a sample batch as for "
            "trace(), and with dim= the dimension that is the batch"
        )

    def _dim_of(self, leaf: Any) -> int | None:
        """The dimension of an input that is the batch: a mask or labels beside (steps, batch) have it first."""
        if not isinstance(leaf, torch.Tensor):
            return None
        return next(
            (dim for dim in (self.dim, 0) if leaf.dim() > dim and leaf.shape[dim] == self.sample), None
        )

    def _steps_first(self) -> str:
        """The module that reads the inputs as (steps, batch, features), by name and class; empty if none does."""
        if not isinstance(self.model, torch.nn.Module):
            return ""
        readers = {
            module: name
            for name, module in self.model.named_modules()
            if isinstance(module, STEPS_FIRST) and not module.batch_first
        }
        if not readers:
            return ""
        tensors = [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        begins = {tuple(leaf.shape[:2]) for leaf in tensors if leaf.dim() > 1}
        names: list[str] = []

        def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)]
            if read and read[0].dim() == 3 and tuple(read[0].shape[:2]) in begins:
                # as many steps as samples say nothing, unless it is the very input
                if read[0].shape[0] != read[0].shape[1] or any(read[0] is leaf for leaf in tensors):
                    names.append(f"{readers[module] or 'the model'} ({type(module).__name__})")

        with _watching(readers, look):
            trace(self.model, *self.args, kwargs=self.kwargs, fake=True, keep=False)
        return names[0] if names else ""


@contextmanager
def _watching(modules: Any, look: Callable[..., None]) -> Iterator[None]:
    """Have a look at what modules are called with."""
    handles = [module.register_forward_pre_hook(look, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# of which a time is the median
RUNS = 5
# batches that are run to find the largest
TRIES = 6
# the largest batch that is timed
MOST = 1 << 20


def needed(row: BatchMemory, rows: Iterable[BatchMemory]) -> int:
    """What a batch needs: with what tensors held, if it ran; if not, as the nearest one that ran lets expect."""
    ran = [other for other in rows if other.measured_bytes is not None]
    if row.measured_bytes is not None or not ran:
        return row.needed_bytes
    nearest = min(ran, key=lambda other: (abs(other.batch - row.batch), -other.ratio))
    return math.ceil(row.predicted_bytes * nearest.ratio)


def search(
    run: BatchedRun, sizes: BatchSizes, rows: dict[int, BatchMemory], budget: float, largest: int
) -> int | None:
    """Close in on the largest batch predicted to fit: by the slope of what is known, by halves where that gains little.

    It is returned; all that were looked at are in ``rows``.
    """
    # from here on all sizes are in units
    unit, cap = sizes.unit, max(1, largest // sizes.unit)
    # fits; does not
    low, high = sizes.least // unit, cap + 1
    tried = 0
    # an earlier search has narrowed it
    for batch, row in rows.items():
        if row.predicted_bytes <= budget:
            low = max(low, batch // unit)
        else:
            high = min(high, batch // unit)
    count = min(low + 1, cap)
    while high - low > 1:
        batch = count * unit
        rows[batch] = run.predicted(batch)
        tried += 1
        before = high - low
        if rows[batch].predicted_bytes <= budget:
            low = count
        else:
            high = count
        first, last = rows[min(rows)], rows[max(rows)]
        slope = unit * (last.predicted_bytes - first.predicted_bytes) / (last.batch - first.batch)
        room = (budget - rows[low * unit].predicted_bytes) / slope if slope > 0 else math.inf
        count = low + max(1, int(min(room, cap)))
        # a line through a curve that bends upwards only creeps towards where it crosses
        creeps = tried > 2 and high - low > before / 2
        # by leaps, as inputs of the largest size may be more than there is memory for
        if high > cap:
            count = min(4 * low if creeps else count, cap)
        elif count >= high or creeps:
            count = (low + high) // 2
    return max((batch for batch, row in rows.items() if row.predicted_bytes <= budget), default=None)


def prove(
    run: BatchedRun,
    sizes: BatchSizes,
    rows: dict[int, BatchMemory],
    budget: int,
    largest: int,
    room: int,
    notes: list[str],
) -> None:
    """Run a copy of the module with the largest batch that fits, and then with what does by that run: more, or less."""
    ratio, tries = 1.0, 0
    while True:
        wanted = search(run, sizes, rows, budget / ratio, largest) or sizes.least
        ran = [row for row in rows.values() if row.measured_bytes is not None]
        over = min((row.batch for row in ran if row.needed_bytes > budget), default=math.inf)
        fits = max((row.batch for row in ran if row.needed_bytes <= budget), default=0)
        wanted = int(min(wanted, over - sizes.unit))
        if wanted <= fits or wanted < sizes.least:
            return
        rows.setdefault(wanted, run.predicted(wanted))
        if rows[wanted].predicted_bytes * ratio * 2 > room:
            notes.append(f"a batch of {wanted:,} was not run: this machine has {size(room)} to spare")
            return
        if tries == TRIES:
            notes.append(f"a batch of {wanted:,} may fit by what ran; {TRIES} were run, and it was not")
            return
        tries += 1
        measured = run.traced(wanted, model=copy.deepcopy(run.model)).memory().peak_bytes
        rows[wanted] = rows[wanted]._replace(measured_bytes=measured)
        ratio = rows[wanted].ratio


def take_times(
    run: BatchedRun, sizes: BatchSizes, rows: dict[int, BatchMemory], most: int, room: int
) -> None:
    """Time batches of twice the size each up to ``most``, as long as there is room and it pays."""
    model: Any = copy.deepcopy(run.model)
    best, flat = 0.0, 0
    chosen = [sizes.unit << power for power in range(MOST.bit_length())]
    for batch in progress([batch for batch in chosen if sizes.least <= batch <= most], "throughput"):
        row = rows.get(batch) or run.predicted(batch)
        if row.predicted_bytes * 2 > room or flat >= 2:
            break
        time_ns = _timed(run, model, batch)
        pace = batch / (time_ns / 1e9)
        flat = flat + 1 if pace < best * 1.05 else 0
        best = max(best, pace)
        rows[batch] = row._replace(time_ns=time_ns, per_second=pace)


def _timed(run: BatchedRun, model: Any, batch: int) -> int:
    """The median time of a run, device work included."""
    times = []
    for turn in range(RUNS + 1):
        if isinstance(model, torch.nn.Module):
            model.zero_grad(set_to_none=True)
        start = time.perf_counter_ns()
        run.run(model, batch)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if turn:
            times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times))


def free_bytes(run: BatchedRun) -> int:
    """What this machine can still give."""
    tensors = [leaf for leaf in pytree.tree_leaves((run.args, run.kwargs)) if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_cuda for tensor in tensors):
        return torch.cuda.mem_get_info()[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # not known: enough for a small run, no more
        return 2 * 1024**3
