"""Run a model over a loader and write what is kept, or take statistics of it: memory does not grow with the samples."""

from __future__ import annotations

import dataclasses
import inspect
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from torch_vis.analysis.activations.dataset import ActivationSet, labelled
from torch_vis.analysis.activations.shards import Batch, Kept, ShardWriter, buffer_of
from torch_vis.analysis.activations.statistics import Statistic
from torch_vis.capture.containers import argument_names, container_items, named_tensors, with_tensors
from torch_vis.capture.live import Live
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.io.atomic import PathLike
from torch_vis.progress import progress
from torch_vis.replay.activation_file import DTYPES

SHARD_BYTES = 64 << 20
# elements of each parameter that say whether the weights are those of before
PROBED = 4096


@overload
def extract(
    model: torch.nn.Module,
    loader: Iterable[Any],
    *,
    keep: Any = None,
    to: PathLike,
    stats: Mapping[Any, Any] | None = None,
    call: Callable[[torch.nn.Module, Any], Any] | None = None,
    until: Any = None,
    dim: int | Mapping[str, int] = 0,
    shard_bytes: int = 67_108_864,
) -> ActivationSet: ...
@overload
def extract(
    model: torch.nn.Module,
    loader: Iterable[Any],
    *,
    keep: Any = None,
    to: None = None,
    stats: Mapping[Any, Any] | None = None,
    call: Callable[[torch.nn.Module, Any], Any] | None = None,
    until: Any = None,
    dim: int | Mapping[str, int] = 0,
    shard_bytes: int = 67_108_864,
) -> dict[Any, Any]: ...
def extract(
    model: torch.nn.Module,
    loader: Iterable[Any],
    *,
    keep: Any = None,
    to: PathLike | None = None,
    stats: Mapping[Any, Any] | None = None,
    call: Callable[[torch.nn.Module, Any], Any] | None = None,
    until: Any = None,
    dim: int | Mapping[str, int] = 0,
    shard_bytes: int = SHARD_BYTES,
) -> ActivationSet | dict[Any, Any]:
    """Run a model over all batches of a loader and write the activations that ``keep`` selects to a folder.

    A batch is a tensor, a dictionary of the model's arguments (a dataclass or named tuple with their names), or a list
    of them, of which the model is given the first ones that it takes; ``call(model, batch)`` says otherwise. Samples
    lie along the first dimension, or along ``dim``, for all or by name. The model runs as it is, without gradients:
    call ``eval()`` before. ``until`` is that of ``tv.live``; ``until=True`` leaves out what comes after the last
    selected module.

    Called again after it was interrupted, even by ``kill -9``, it goes through the loader again, runs the model only on
    batches that are not on the disk, and raises if the batches are not those of before (a loader that shuffles has to
    be seeded). If the loader or the model raises, what was computed is written first. Under ``torchrun`` each process
    writes its part; with a ``DistributedSampler`` the rows of all are in the order of the data set, each once.

    ``stats={name: tv.stats.Mean()}`` takes statistics, one or a list for each name, and ``{(a, b): tv.stats.CKA()}``
    of two; without ``to`` nothing is written and they are what is returned. Under ``torchrun`` take them of the set, by
    ``tv.open_activations``, when all processes are done.

    >>> import tempfile, torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> loader = torch.utils.data.DataLoader(torch.randn(10, 3), batch_size=4)
    >>> acts = tv.extract(model, loader, keep="0", to=tempfile.mkdtemp())
    >>> acts["0"]
    <ActivationArray '0': float32[10, 2]>
    >>> tv.extract(model, loader, stats={"1": tv.stats.Mean()})["1"].shape
    torch.Size([2])
    """
    wanted = _statistics(stats)
    if keep is None:
        keep = list(dict.fromkeys(name for names, _ in wanted for name in names))
    if isinstance(keep, (list, tuple, set)) and not keep:
        raise UsageError("extract() takes activations to keep: keep=, or stats= with names")
    if to is None and not wanted:
        raise UsageError("extract() writes to a folder: to='acts/', or takes statistics: stats={name: …}")
    if shard_bytes < 1:
        raise UsageError(f"shard_bytes is a number of bytes, not {shard_bytes}")
    if not isinstance(loader, Iterable):
        raise UsageError(
            f"extract() goes through a loader, and {type(loader).__name__} cannot be gone through"
        )
    if isinstance(loader, (torch.Tensor, Mapping, str, bytes)):
        advice = (
            "x.split(32) makes batches of it"
            if isinstance(loader, torch.Tensor)
            else "[batch] is a list of one"
        )
        raise UsageError(
            f"extract() goes through a loader of batches, and this is one {type(loader).__name__}: {advice}"
        )
    job = Extraction(model, loader, keep, call, until, dim)
    if wanted:
        job.refuse_part(to is not None)
    if to is None:
        return job.statistics(wanted)
    job.write(to, shard_bytes)
    acts = ActivationSet(to)
    if wanted:
        acts.stats = {
            key: _over(given, [acts[_only(name, acts)] for name in names])
            for key, (names, given) in zip(stats or (), wanted)
        }
    return acts


class Extraction:
    """One way through a loader: each batch with what was kept of it."""

    def __init__(
        self,
        model: torch.nn.Module,
        loader: Iterable[Any],
        keep: Any,
        call: Callable[[torch.nn.Module, Any], Any] | None,
        until: Any,
        dim: int | Mapping[str, int],
    ) -> None:
        self.live = Live(model, keep=keep, until=until)
        self.model, self.loader, self.keep, self.call, self.dim = model, loader, keep, call, dim
        self.rank, self.ranks = _rank()
        self.paths = {
            path.replace("_orig_mod.", "") for path, _ in model.named_modules(remove_duplicate=False)
        }
        first = next(model.parameters(), None)
        self.device = None if first is None else first.device

    def refuse_part(self, written: bool) -> None:
        """Raise for statistics where this process has only a part of the data, and others have the rest."""
        sampler = getattr(getattr(self.loader, "batch_sampler", None), "sampler", None)
        part = isinstance(sampler, torch.utils.data.DistributedSampler) and sampler.num_replicas > 1
        if part or (written and self.ranks > 1):
            raise UsageError(
                "each process has a part of the data, and stats= would be those of that part: extract with to= alone, "
                "and when all processes are done take tv.stats of tv.open_activations(…)"
            )

    def write(self, folder: PathLike, shard_bytes: int) -> None:
        """Write all batches that are not there yet."""
        samples = SampleIds(self.loader, self.ranks)
        writer = ShardWriter(folder, self.rank, self._head(), shard_bytes)
        with _closed_after(writer):
            done = list(writer.done)
            try:
                count = self._write_batches(writer, samples, done, os.fspath(folder))
            except BaseException:
                # what was computed stays
                writer.flush()
                writer.wait()
                raise
            if count < len(done):
                raise UsageError(
                    f"{os.fspath(folder)} holds {len(done)} batches and the loader gave {count}: it is not the one "
                    "that was extracted; give another folder, or remove this one"
                )
            if not count:
                raise UsageError("the loader gave no batch")
            writer.finish()

    def _write_batches(
        self, writer: ShardWriter, samples: SampleIds, done: Sequence[Batch], folder: str
    ) -> int:
        """Hand over all batches that are not there yet; how many the loader gave."""
        count = 0
        with self.live as run:
            for batch, checksum, kept in self._batches(run, done):
                row = Batch(_samples(batch, kept), checksum, samples.take(batch))
                if count < len(done):
                    self._same(folder, count, done[count], row)
                else:
                    writer.add(row, kept)
                count += 1
        return count

    def _same(self, folder: str, number: int, before: Batch, now: Batch) -> None:
        if before.checksum != now.checksum:
            raise UsageError(
                f"batch {number} of the loader is not the one that was extracted to {folder}: a loader that shuffles "
                "has to be seeded, and the size of batches has to stay; give another folder, or remove this one"
            )

    def _head(self) -> dict[str, Any]:
        """What a folder has to have been made with, so that one goes on with it."""
        listed = self.keep if isinstance(self.keep, (list, tuple, set)) else [self.keep]
        texts = [item if isinstance(item, str) else getattr(item, "__name__", str(item)) for item in listed]
        limits = list(self.live.limits)
        if self.model.training and any(
            isinstance(module, (torch.nn.Dropout, torch.nn.modules.batchnorm._BatchNorm)) and module.training
            for module in self.model.modules()
        ):
            limits.append("the model was in training mode: dropout is random, and normalisation is by batch")
        return {
            "model": type(self.model).__name__,
            "keep": texts,
            "weights": _probe(self.model),
            "ranks": self.ranks,
            "limits": limits,
        }

    def statistics(self, wanted: list[tuple[tuple[str, ...], Any]]) -> dict[Any, Any]:
        """Take statistics of what is kept; the loader is gone through as often as they need."""
        open_ones = [(names, statistic) for names, given in wanted for statistic in _listed(given)]
        needs_pass = True
        while needs_pass:
            count = 0
            with self.live as run:
                for _, _, kept in self._batches(run, []):
                    arrays = _arrays(kept)
                    for names, statistic in open_ones:
                        parts = [arrays[_only(name, arrays)] for name in names]
                        for tensors in zip(*parts, strict=True):
                            statistic.update(*tensors)
                    count += 1
            if not count:
                raise UsageError("the loader gave no batch")
            open_ones = [(names, statistic) for names, statistic in open_ones if statistic.next_pass()]
            needs_pass = bool(open_ones)
            if needs_pass and isinstance(self.loader, Iterator):
                raise UsageError(
                    f"{type(open_ones[0][1]).__name__} goes through the data more than once, and an iterator can be "
                    "gone through once: give a loader or a list"
                )
        return {names[0] if len(names) == 1 else names: _result(given) for names, given in wanted}

    def _batches(self, run: Live, done: Sequence[Batch]) -> Iterator[tuple[Any, int, list[Kept]]]:
        """Each batch with its checksum; what was kept of it is empty where it is done already."""
        for number, batch in enumerate(progress(self.loader, "extracting")):
            checksum = _checksum(batch)
            if number < len(done):
                yield batch, checksum, []
                continue
            run.kept.clear()
            with without_gradients():
                self._run(batch)
            kept = self._kept(run.kept)
            run.kept.clear()
            if not kept and not number:
                raise UsageError(f"nothing was kept of the first batch: {self.keep!r} did not come by")
            yield batch, checksum, kept

    def _run(self, batch: Any) -> None:
        if self.device is not None and self.device.type != "meta":
            device = self.device
            batch = with_tensors(
                batch, lambda _, tensor: tensor if tensor.device == device else tensor.to(device)
            )
        if self.call is not None:
            self.call(self.model, batch)
        elif (named := _named_arguments(self.model, batch)) is not None:
            try:
                self.model(**named)
            except Exception as error:
                _note(
                    error,
                    f"extract() gave the model the parts {', '.join(map(repr, named))} of the batch by name",
                )
                raise
        elif isinstance(batch, (list, tuple)):
            given = batch[: _most_arguments(self.model)]
            try:
                self.model(*given)
            except Exception as error:
                if len(given) > 1:
                    _note(
                        error,
                        f"extract() gave the model the first {len(given)} parts of the batch as its arguments; if only "
                        "the first is meant: call=lambda model, batch: model(batch[0])",
                    )
                raise
        else:
            try:
                self.model(batch)
            except Exception as error:
                if not isinstance(batch, torch.Tensor):
                    _note(error, f"extract() gave the model the whole batch, of type {type(batch).__name__}")
                raise

    def _kept(self, kept: Mapping[str, list[Any]]) -> list[Kept]:
        """What a batch gave, as rows."""
        result: list[Kept] = []
        for name, items in kept.items():
            path = name if name in self.paths else _path_in(name, self.paths)
            for number, item in enumerate(items):
                leaves: list[tuple[str, torch.Tensor]] = []
                with_tensors(item, lambda leaf, tensor, to=leaves: to.append((leaf, tensor)) or tensor)  # type: ignore[misc]
                for leaf, tensor in leaves:
                    label = f"{name}.output.{leaf}" if leaf else name
                    rows = self._rows(label, tensor)
                    result += [Kept(label, number, len(path), part) for part in rows]
        return result

    def _rows(self, name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A tensor with samples along its first dimension, in plain memory; a nested one as a row for each part."""
        if tensor.is_nested:
            return [part.unsqueeze(0).contiguous().cpu() for part in tensor.unbind()]
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.layout is torch.strided and not tensor.is_quantized
        if not plain or dtype not in DTYPES or hasattr(tensor, "__tensor_flatten__"):
            what = dtype if plain else str(tensor.layout).removeprefix("torch.")
            raise UsageError(
                f"{name!r} is a tensor of {what}, for which safetensors has no form: keep another part"
            )
        dim = self.dim if isinstance(self.dim, int) else self.dim.get(name, 0)
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        elif dim:
            if not -tensor.dim() <= dim < tensor.dim():
                raise UsageError(f"dim={dim}: {name!r} has {tensor.dim()} dimensions")
            tensor = tensor.movedim(dim, 0)
        return [tensor.resolve_conj().resolve_neg().contiguous().cpu()]


@context
def _closed_after(undo: Undo, writer: ShardWriter) -> None:
    undo.add(writer.close)


def _path_in(name: str, paths: set[str]) -> str:
    """The module that a name with a port, a slice or an operation begins with."""
    fitting = [
        path
        for path in paths
        if name.startswith(path) and name[len(path) :][:1] in ("", ".", "[", "/", ":", "#")
    ]
    return max(fitting, key=len, default="")


def _most_arguments(model: torch.nn.Module) -> int | None:
    """How many arguments a model takes by position; None for any number."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return len(argument_names(model))


def _named_arguments(model: torch.nn.Module, batch: Any) -> Mapping[str, Any] | None:
    """The parts of a batch by the names of the model's arguments; None for one that has no such names.

    A dictionary is one of arguments. A dataclass or named tuple is where the model takes all of its fields by name.
    """
    if isinstance(batch, Mapping):
        return batch
    if not hasattr(batch, "_fields") and not dataclasses.is_dataclass(batch):
        return None
    fields = dict(container_items(batch))
    try:
        inspect.signature(model.forward).bind(**fields)
    except (TypeError, ValueError):
        return None
    return fields


def _samples(batch: Any, kept: Sequence[Kept]) -> int:
    """How many samples a batch has: by its first tensor, else by its length, else by the output."""
    for _, tensor in named_tensors(batch):
        if tensor.dim() or tensor.is_nested:
            return int(tensor.size(0))
    first: Any = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch
    if not isinstance(first, (str, bytes)) and hasattr(first, "__len__"):
        return len(first)
    return len(kept[0].tensor) if kept else 1


def _checksum(batch: Any) -> int:
    """A number that changes with what the model is given."""
    checksum = 0
    stack: list[Any] = [batch]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            for _, part in named_tensors(item):
                plain = part.unbind() if part.is_nested else [part]
                for tensor in plain:
                    checksum = zlib.crc32(repr((tensor.dtype, tuple(tensor.shape))).encode(), checksum)
                    if tensor.layout is torch.strided and not tensor.is_quantized:
                        checksum = zlib.crc32(buffer_of(tensor), checksum)
        elif isinstance(item, (str, bytes, int, float, bool)):
            checksum = zlib.crc32(repr(item).encode(), checksum)
        else:
            stack.extend(part for _, part in reversed(container_items(item)))
    return checksum


def _probe(model: torch.nn.Module) -> int:
    """A number that changes with the weights, from some elements of each."""
    checksum = 0
    for name, tensor in model.state_dict().items():
        checksum = zlib.crc32(name.encode(), checksum)
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
            continue
        if tensor.device.type == "meta" or hasattr(tensor, "__tensor_flatten__"):
            continue
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // PROBED)
        checksum = zlib.crc32(buffer_of(flat[::step]), checksum)
    return checksum


def _rank() -> tuple[int, int]:
    """Which process this is, and of how many."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


class SampleIds:
    """Which samples of the data set each batch has, where the loader's sampler says it and several processes run."""

    def __init__(self, loader: Any, ranks: int) -> None:
        self.ids: list[int] | None = None
        self.at = 0
        self.size: int | None = None
        if ranks == 1 or not isinstance(loader, torch.utils.data.DataLoader):
            return
        if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
            return
        sampler = getattr(loader.batch_sampler, "sampler", None)
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            self.ids, self.size = [int(index) for index in sampler], loader.batch_size
        elif isinstance(sampler, torch.utils.data.SequentialSampler):
            raise UsageError(
                f"each of the {ranks} processes would go through all samples: give the loader a DistributedSampler"
            )

    def take(self, batch: Any) -> list[int] | None:
        """The samples of the next batch; None from where they are not known on."""
        if self.ids is None or self.size is None:
            return None
        count = min(self.size, len(self.ids) - self.at)
        if _samples(batch, ()) != count:
            # the loader puts batches together in its own way
            self.ids = None
            return None
        taken = self.ids[self.at : self.at + count]
        self.at += count
        return taken


def _statistics(stats: Mapping[Any, Any] | None) -> list[tuple[tuple[str, ...], Any]]:
    """The names that each statistic is about, checked."""
    if stats is None:
        return []
    if not isinstance(stats, Mapping):
        raise UsageError(f"stats is a dictionary of names and statistics, not {type(stats).__name__}")
    result = []
    for key, given in stats.items():
        names = key if isinstance(key, tuple) else (key,)
        for statistic in _listed(given):
            if not isinstance(statistic, Statistic):
                raise UsageError(
                    f"stats[{key!r}] is {type(statistic).__name__}; "
                    "it takes tv.stats.Mean(), tv.stats.PCA(8) and the like"
                )
            if statistic.sides != len(names):
                raise UsageError(
                    f"{type(statistic).__name__} is of {statistic.sides} activations, and {key!r} names {len(names)}"
                )
        result.append((names, given))
    return result


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _result(given: Any) -> Any:
    return [statistic.result() for statistic in given] if isinstance(given, (list, tuple)) else given.result()


def _over(given: Any, arrays: list[Any]) -> Any:
    results = [statistic.over(*arrays) for statistic in _listed(given)]
    return results if isinstance(given, (list, tuple)) else results[0]


def _arrays(kept: Sequence[Kept]) -> dict[str, list[torch.Tensor]]:
    """What a batch gave by name; of several calls of one module, each by its number."""
    calls: dict[str, int] = {}
    for row in kept:
        calls[row.name] = max(calls.get(row.name, 0), row.call)
    arrays: dict[str, list[torch.Tensor]] = {}
    for name, call, path, tensor in kept:
        arrays.setdefault(labelled(name, call, path) if calls[name] else name, []).append(tensor)
    return arrays


def _only(name: str, arrays: Iterable[str]) -> str:
    """The one array that a name of ``stats`` means."""
    names = list(arrays)
    if name in names:
        return name
    ends = [other for other in names if other.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    raise no_match("activation", name, names)


def _note(error: Exception, text: str) -> None:
    """Say with an exception of a model what it was given, and how it can be given something else."""
    # Python 3.10 has no notes
    if hasattr(error, "add_note"):
        if "call=" not in text:
            text += "; call=lambda model, batch: … gives it something else"
        error.add_note(text)
