"""Which tensor is which: the numbers of tensors, of their versions and of the memory that they lie on.

``id(tensor)`` leads to a weak reference that must still be the same tensor, on the same memory. Memory is known by the
address of its storage, whose death a weak reference reports. No tensor is kept alive, but for memory from outside that
a replay is to start from.
"""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.graph.schema import TensorType

Tensor = torch.Tensor
ref = weakref.ref
QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc})


class Unrecordable(Exception):
    """An operation on something that is no tensor yet, such as a lazy parameter being given its shape."""


class StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a block of memory that knows its number, address and size."""

    __slots__ = ("address", "number", "size")
    address: int
    number: int
    size: int


class TensorRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a tensor that knows the number of its newest version and the address of its memory."""

    __slots__ = ("address", "number")
    address: int | None
    number: int


class Tensors:
    """The tensors that a run has met so far, and the memory that they lie on."""

    def __init__(self, *, keep: bool, memory: bool) -> None:
        self.keep = keep
        self.memory = memory  # whether the death of a block of memory is reported
        self.kept = KeptTensors()
        self.count = 0  # operations so far
        self.closed = False
        self.unseen: dict[str, int] = {}  # counts of what could not be followed, by kind
        self.types: dict[Any, int] = {}
        self.type_rows: list[TensorType] = []
        self.type_opaque: list[bool] = []
        self.seen: dict[int, TensorRef] = {}
        self.values: list[int] = []  # number, storage, offset and type of each, on end
        self.value_numbers = itertools.count()
        self.storages: dict[int, StorageRef] = {}
        self.storage_rows: list[int] = []  # number, bytes, birth and device of each, on end
        self.storage_numbers = itertools.count()
        self.resizes: list[tuple[int, int, int]] = []
        self.devices: dict[torch.device, int] = {torch.device("cpu"): 0}
        self.deaths: list[tuple[int, int]] = []
        self.opaque_refs: dict[int, Any] = {}
        self.stored: dict[int, int] = {}  # elements that sparse and nested tensors hold, by number
        self.outside: set[int] = set()
        self.dirty: set[int] = set()
        self.external_refs: dict[int, Any] = {}
        self.aliases: list[int] = []
        self.appeared: list[int] = []
        self.flips = False  # a tensor with a conjugate or negative bit has been seen
        self.dead = self._dead if memory else None  # bound once: each binding is an object of its own

    def meet(self, tensor: Tensor) -> TensorRef:
        """Note a tensor that was not made by a recorded operation: from outside, or an alias torch made unseen."""
        self.flips = self.flips or tensor.is_conj() or tensor.is_neg()
        known = self.seen.get(id(tensor))
        before = len(self.storage_rows)
        number = self.note(tensor, -1)
        if known is not None and known() is tensor and known.address is not None:
            self.unseen["reassigned"] = self.unseen.get("reassigned", 0) + 1
        if len(self.storage_rows) > before:
            self.hold(tensor, number)
            if torch._C._current_autograd_node() is not None:
                self.appeared.append(number)
        else:
            self.aliases.append(number)
        return self.seen[id(tensor)]

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor's newest version, noted now if it was not known."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return self.meet(tensor).number
        if entry.address is not None and entry.address != tensor.untyped_storage()._cdata:
            return self.meet(tensor).number
        return entry.number

    def hold(self, tensor: Tensor, number: int) -> None:
        """Note that a tensor lies on memory from outside, and keep that for a replay."""
        storage_number = self._storage_of(number)
        self.outside.add(storage_number)
        self.external_refs[number] = ref(tensor)
        if not self.keep:
            return
        entry = self.seen[id(tensor)]
        if entry.address is None:
            self.kept.opaque_tensors[number] = tensor
        else:
            self.kept.storages[storage_number] = tensor.untyped_storage()

    def _storage_of(self, number: int) -> int:
        rows = self.values
        place = len(rows) - 4
        while rows[place] != number:  # threads may have appended in another order than they counted
            place -= 4
        return rows[place + 1]

    def note(self, tensor: Tensor, birth: int) -> int:
        """Number a new version of a tensor; ``birth`` is the operation that makes it, -1 if none does."""
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
            key: Any = (tensor.shape, tensor.stride(), tensor.dtype)
            if self.flips:
                key += (tensor.is_conj(), tensor.is_neg())
            offset = int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):
            return self._note_opaque(tensor, birth)
        kind = self.types.get(key)
        if kind is None:
            kind = self._new_type(tensor, key)
        if self.type_opaque[kind]:
            return self._note_opaque(tensor, birth)
        known = self.storages.get(address)
        if known is None or known() is None:  # a death may go unreported
            size = storage.nbytes()
            if tensor._is_zerotensor() or (not size and tensor.numel()):
                return self._note_opaque(tensor, birth)  # a tensor that is known to be zero has no memory
            known = StorageRef(storage, self.dead)
            known.number = next(self.storage_numbers)
            known.address = address
            known.size = size
            self.storages[address] = known
            self.storage_rows += (
                known.number,
                size,
                birth,
                0 if tensor.is_cpu else self._device(tensor.device),
            )
        number = next(self.value_numbers)
        self.values += (number, known.number, offset, kind)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = address
        return number

    def check_size(self, tensor: Tensor, node: int) -> None:
        """Note that a write made a block of memory larger or smaller."""
        address = self.seen[id(tensor)].address
        if address is None:
            return
        known, size = self.storages[address], tensor.untyped_storage().nbytes()
        self.dirty.add(known.number)
        if size != known.size:
            self.resizes.append((known.number, size, node))
            known.size = size

    def _note_opaque(self, tensor: Tensor, birth: int) -> int:
        if isinstance(tensor, UninitializedTensorMixin):
            raise Unrecordable
        layout = str(tensor.layout).removeprefix("torch.")
        if layout == "strided":
            layout = "zero"
        if tensor.dtype in QUANTIZED:
            layout = "quantized"
        elif tensor.is_nested:
            layout = "nested"
        try:
            shape = tuple(int(size) for size in tensor.shape)
        except RuntimeError:  # a nested tensor has no one shape
            shape = ()
        key = (shape, layout, tensor.dtype)
        kind = self.types.get(key)
        if kind is None:
            kind = self.types[key] = len(self.type_rows)
            self.type_opaque.append(True)
            self.type_rows.append(TensorType(str(tensor.dtype).removeprefix("torch."), shape, (), layout))
        known = self.seen.get(id(tensor))
        if known is not None and known() is tensor and known.address is None:
            storage_number = self._storage_of(known.number)
        else:
            storage_number = next(self.storage_numbers)
            self.storage_rows += (storage_number, 0, birth, self._device(tensor.device))
            self.opaque_refs[storage_number] = ref(tensor, lambda _: self._opaque_dead(storage_number))
        number = next(self.value_numbers)
        held = stored_elements(tensor)
        if held is not None:
            self.stored[number] = held
        self.values += (number, storage_number, 0, kind)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = None
        return number

    def _new_type(self, tensor: Tensor, key: Any) -> int:
        shape, stride, dtype, conj, neg = key if self.flips else (*key, False, False)
        row = TensorType(
            str(dtype).removeprefix("torch."),
            tuple(int(size) for size in shape),
            tuple(int(step) for step in stride),
            "strided",
            conj,
            neg,
        )
        kind = self.types[key] = len(self.type_rows)
        plain = tensor.layout is torch.strided and dtype not in QUANTIZED and not tensor.is_nested
        self.type_opaque.append(not plain)
        self.type_rows.append(row)
        return kind

    def _device(self, device: torch.device) -> int:
        number = self.devices.get(device)
        if number is None:
            number = self.devices[device] = len(self.devices)
        return number

    def _dead(self, storage: StorageRef) -> None:
        if self.closed:
            return
        if self.storages.get(storage.address) is storage:
            del self.storages[storage.address]
        self.deaths.append((storage.number, self.count))

    def _opaque_dead(self, storage: int) -> None:
        if not self.closed:
            self.deaths.append((storage, self.count))

    def knows(self, tensor: Tensor) -> bool:
        """Whether this very tensor has been seen."""
        entry = self.seen.get(id(tensor))
        return entry is not None and entry() is tensor

    def save_originals(self, tensors: list[Tensor], slots: tuple[int, ...]) -> None:
        """Copy outside memory that is about to be written for the first time."""
        for slot in slots:
            entry = self.seen[id(tensors[slot])]
            if entry.address is None:
                continue
            number = self.storages[entry.address].number
            if number in self.outside and number not in self.kept.originals:
                with torch._C._DisableTorchDispatch():
                    self.kept.originals[number] = copy_of(tensors[slot].untyped_storage())


def stored_elements(tensor: Tensor) -> int | None:
    """How many elements a sparse or nested tensor holds; None of any other, and where nothing says."""
    try:
        if tensor.is_nested:
            return int(tensor.numel())
        if tensor.layout is torch.sparse_coo:
            return int(tensor._nnz()) * math.prod(tensor.shape[tensor.sparse_dim() :])
        return int(tensor.values().numel()) if tensor.layout in SPARSE else None
    except (RuntimeError, NotImplementedError):  # what stands for a tensor may have none
        return None
