"""Which tensor is which: the numbers of tensors, of their versions and of the memory that they lie on.

``id(tensor)`` leads to a weak reference that must still be the same tensor, on the same memory. Memory is known by the
address of its storage, whose death a weak reference reports. No tensor is kept alive, but for memory from outside that
a replay is to start from.

What leaves for Python without an operation is noted with a digest of its contents, so that a rerun can tell whether
something else would leave. Memory that an array, a capsule or an address leads to is looked at before every operation
that touches it, and at the end: if its contents are not what the last operation left, somebody has written through
what was given away.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.capture.kept_tensors import Escape, Geometry, KeptTensors, copy_of
from torch_vis.graph.schema import TensorType

Method = TypeVar("Method", bound=Callable[..., Any])
Tensor = torch.Tensor
ref = weakref.ref
QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
# values that are Python's own, of which a new tensor is made
MADE_FROM_PYTHON = "torch.tensor"
SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc})


class Unrecordable(Exception):
    """An operation on something that is no tensor yet, such as a lazy parameter being given its shape."""


class StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage that knows its number, address and size.

    Its ``address`` is that of torch's storage object (``_cdata``), the same for all tensors on it; not ``data_ptr()``.
    """

    __slots__ = ("address", "number", "size")
    address: int
    number: int
    size: int


class TensorRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a tensor that knows the number of its newest version and the address of its storage."""

    __slots__ = ("address", "number")
    # None for a tensor without plain memory (sparse, nested, quantized)
    address: int | None
    number: int


class LentMemory:
    """Memory shared with Python (``numpy()``, DLPack, ``data_ptr()``): its contents as the last operation left them."""

    __slots__ = ("digest", "escapes", "storage")

    def __init__(self, storage: torch.UntypedStorage, digest: bytes | None) -> None:
        self.storage = ref(storage)
        self.digest = digest
        self.escapes: list[Escape] = []


def irregular(method: Method) -> Method:
    """Decorator: count a method's time as overhead that only some operations have, not as that of the typical one."""

    @functools.wraps(method)
    def timed(self: Tensors, *args: Any, **kwargs: Any) -> Any:
        before, begun = self.irregular, self.clock()
        try:
            return method(self, *args, **kwargs)
        finally:
            # set and not added: one inside another has counted itself
            self.irregular = before + self.clock() - begun

    return timed  # type: ignore[return-value]


def _itself(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


class Tensors:
    """The tensors that a run has used so far, and the memory that they lie on.

    A value is one version of a tensor: a new one with each operation that returns the tensor or writes to it.
    """

    clock: Callable[[], int]

    def __init__(self, *, keep: bool, memory: bool) -> None:
        self.keep = keep
        # nanoseconds that the operation being recorded took more than others: what is seen for the first time, copies
        self.irregular = 0
        # whether the death of a block of memory is reported
        self.memory = memory
        self.kept = KeptTensors()
        # operations so far
        self.count = 0
        self.closed = False
        # how often something could not be followed, by kind
        self.uncaptured: Counter[str] = Counter()
        # numbers of tensor types, by shape, strides and element type
        self.types: dict[Any, int] = {}
        self.type_rows: list[TensorType] = []
        # whether tensors of the type have no plain memory
        self.type_opaque: list[bool] = []
        # the newest version of each tensor, by id of the tensor
        self.seen: dict[int, TensorRef] = {}
        # flat rows of four: number, storage, offset and type
        self.values: list[int] = []
        self.value_numbers = itertools.count()
        # blocks of memory that are alive, by address
        self.storages: dict[int, StorageRef] = {}
        # flat rows of four: number, bytes, the operation that allocated it (-1: none) and device
        self.storage_rows: list[int] = []
        self.storage_numbers = itertools.count()
        # storage, new size, and the operation from which on it has it
        self.resizes: list[tuple[int, int, int]] = []
        # storages of which only a change of size has been seen so far
        self.only_resized: set[int] = set()
        # the memory that a fake run uses instead of some of the user's
        self.twin_of: Callable[[torch.UntypedStorage], torch.UntypedStorage] = _itself
        self.devices: dict[torch.device, int] = {torch.device("cpu"): 0}
        # storage, and how many operations there were before
        self.deaths: list[tuple[int, int]] = []
        # memory that is shared with Python, by address
        self.lent: dict[int, LentMemory] = {}
        # references to memory that died since the last operation: an interrupt inside a callback in Python is lost
        self.dead: deque[StorageRef] = deque()
        # weak references to tensors without plain memory, by the storage that stands for theirs
        self.opaque_refs: dict[int, Any] = {}
        # how many elements a sparse or nested tensor holds, by value
        self.stored_elements: dict[int, int] = {}
        # numbers of storages
        self.external_storages: set[int] = set()
        self.written_storages: set[int] = set()
        # weak references to tensors from outside, by value
        self.external_tensors: dict[int, Any] = {}
        # values in known memory that no recorded operation made
        self.aliases: list[int] = []
        # values of tensors that were first seen in backward, on memory that was not known
        self.appeared_in_backward: list[int] = []
        # a tensor with a conjugate or negative bit has been seen, so that types have to tell them apart
        self.conj_or_neg = False
        # bound once: each binding is an object of its own
        self.on_death = self.dead.append if memory else None

    @irregular
    def add_external(self, tensor: Tensor) -> TensorRef:
        """Number a tensor that no recorded operation made: from outside, or an alias that torch made unseen."""
        self.conj_or_neg = self.conj_or_neg or tensor.is_conj() or tensor.is_neg()
        known = self.seen.get(id(tensor))
        before = len(self.storage_rows)
        number = self.add(tensor, -1)
        if known is not None and known() is tensor and known.address is not None:
            self.uncaptured["reassigned"] += 1
        if len(self.storage_rows) > before or (self.only_resized and self._is_first(number, tensor)):
            self.keep_external(tensor, number)
            if torch._C._current_autograd_node() is not None:
                self.appeared_in_backward.append(number)
        else:
            self.aliases.append(number)
        return self.seen[id(tensor)]

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor's newest version; a tensor that was not known gets one."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return self.add_external(tensor).number
        if entry.address is not None and entry.address != tensor.untyped_storage()._cdata:
            return self.add_external(tensor).number
        return entry.number

    def keep_external(self, tensor: Tensor, number: int) -> None:
        """Note that a tensor lies on memory from outside, and keep that for a replay."""
        storage_number = self._storage_of(number)
        self.external_storages.add(storage_number)
        self.external_tensors[number] = ref(tensor)
        if not self.keep:
            return
        entry = self.seen[id(tensor)]
        if entry.address is None:
            self.kept.opaque_tensors[number] = tensor
        else:
            self.kept.storages[storage_number] = tensor.untyped_storage()

    def _storage_of(self, number: int) -> int:
        """The storage of a value that was added lately."""
        rows = self.values
        row = len(rows) - 4
        # threads may have appended in another order than they counted
        while rows[row] != number:
            row -= 4
        return rows[row + 1]

    def add(self, tensor: Tensor, producer: int) -> int:
        """Number a new version of a tensor; ``producer`` is the operation that makes it, -1 for none."""
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
            key: Any = (tensor.shape, tensor.stride(), tensor.dtype)
            if self.conj_or_neg:
                key += (tensor.is_conj(), tensor.is_neg())
            offset = int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):
            return self._add_opaque(tensor, producer)
        type_number = self.types.get(key)
        if type_number is None:
            type_number = self._new_type(tensor, key)
        if self.type_opaque[type_number]:
            return self._add_opaque(tensor, producer)
        known = self.storages.get(address)
        # a death may go unreported
        if known is None or known() is None:
            size = storage.nbytes()
            # a tensor that is known to be zero has no memory
            if tensor._is_zerotensor() or (not size and tensor.numel()):
                return self._add_opaque(tensor, producer)
            known = StorageRef(storage, self.on_death)
            known.number = next(self.storage_numbers)
            known.address = address
            known.size = size
            self.storages[address] = known
            device = 0 if tensor.is_cpu else self._device(tensor.device)
            self.storage_rows += (known.number, size, producer, device)
        number = next(self.value_numbers)
        self.values += (number, known.number, offset, type_number)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = address
        return number

    def note_write(self, tensor: Tensor, node: int) -> None:
        """Note that an operation wrote to the memory of a tensor, and whether that made it larger or smaller."""
        address = self.seen[id(tensor)].address
        if address is None:
            return
        known, size = self.storages[address], tensor.untyped_storage().nbytes()
        self.written_storages.add(known.number)
        if size != known.size:
            # what became free is free after the operation
            self.resizes.append((known.number, size, node + (size < known.size)))
            known.size = size

    def _is_first(self, number: int, tensor: Tensor) -> bool:
        """Whether a value is the first to be seen in its memory, which lies where it does; the next one is not."""
        storage = self._storage_of(number)
        is_first = storage in self.only_resized
        if is_first:
            self.only_resized.discard(storage)
            rows = self.storage_rows
            row = len(rows) - 4
            while rows[row] != storage:
                row -= 4
            rows[row + 3] = self._device(tensor.device)
        return is_first

    def before_resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Memory is about to become larger or smaller without an operation: know it, and keep what would be lost."""
        storage = self.twin_of(storage)
        address, device = storage._cdata, storage.device
        known = self.storages.get(address)
        if known is None or known() is None:
            known = StorageRef(storage, self.on_death)
            known.number = next(self.storage_numbers)
            known.address, known.size = address, storage.nbytes()
            self.storages[address] = known
            # memory of shapes alone stands for that of the CPU, until a tensor on it is seen
            shown = torch.device("cpu") if device.type == "meta" else device
            self.storage_rows += (known.number, known.size, -1, self._device(shown))
            self.only_resized.add(known.number)
            self.external_storages.add(known.number)
        number = known.number
        if self.keep and size < known.size and number in self.external_storages:
            if number not in self.kept.originals and device.type != "meta":
                with torch._C._DisableTorchDispatch():
                    self.kept.originals[number] = copy_of(storage)

    def after_resize(self, resized: torch.UntypedStorage) -> None:
        """Memory has become larger or smaller."""
        size, storage = resized.nbytes(), self.twin_of(resized)
        if storage is not resized:
            torch._C.StorageBase.resize_(storage, size)  # type: ignore[attr-defined]
        known = self.storages.get(storage._cdata)
        if known is not None and size != known.size:
            self.resizes.append((known.number, size, self.count))
            known.size = size

    @irregular
    def _add_opaque(self, tensor: Tensor, producer: int) -> int:
        """Number a new version of a tensor that has no plain memory."""
        if isinstance(tensor, UninitializedTensorMixin):
            raise Unrecordable
        row = opaque_type(tensor)
        key = (row.shape, row.layout, tensor.dtype)
        type_number = self.types.get(key)
        if type_number is None:
            type_number = self.types[key] = len(self.type_rows)
            self.type_opaque.append(True)
            self.type_rows.append(row)
        known = self.seen.get(id(tensor))
        if known is not None and known() is tensor and known.address is None:
            storage_number = self._storage_of(known.number)
        else:
            storage_number = next(self.storage_numbers)
            self.storage_rows += (storage_number, 0, producer, self._device(tensor.device))
            opaque = self.opaque_refs[storage_number] = StorageRef(tensor, self.on_death)
            opaque.number, opaque.address, opaque.size = storage_number, 0, 0
        number = next(self.value_numbers)
        elements = count_stored(tensor)
        if elements is not None:
            self.stored_elements[number] = elements
        self.values += (number, storage_number, 0, type_number)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = None
        return number

    @irregular
    def _new_type(self, tensor: Tensor, key: Any) -> int:
        shape, stride, dtype, conj, neg = key if self.conj_or_neg else (*key, False, False)
        row = TensorType(
            str(dtype).removeprefix("torch."),
            tuple(int(size) for size in shape),
            tuple(int(step) for step in stride),
            "strided",
            conj,
            neg,
        )
        type_number = self.types[key] = len(self.type_rows)
        plain = tensor.layout is torch.strided and dtype not in QUANTIZED and not tensor.is_nested
        self.type_opaque.append(not plain)
        self.type_rows.append(row)
        return type_number

    def _device(self, device: torch.device) -> int:
        return self.devices.setdefault(device, len(self.devices))

    def note_deaths(self) -> None:
        """Note the memory that died since the last operation, before there is another."""
        while self.dead:
            storage = self.dead.popleft()
            if self.storages.get(storage.address) is storage:
                del self.storages[storage.address]
            self.deaths.append((storage.number, self.count))

    def close(self) -> None:
        """Note nothing from here on."""
        if not self.closed:
            self.note_deaths()
            self.closed = True

    def knows(self, tensor: Tensor) -> bool:
        """Whether this very tensor has been seen."""
        entry = self.seen.get(id(tensor))
        return entry is not None and entry() is tensor

    @irregular
    def copy_before_write(self, tensors: list[Tensor], slots: tuple[int, ...]) -> None:
        """Copy memory from outside that is about to be written for the first time."""
        for slot in slots:
            entry = self.seen[id(tensors[slot])]
            if entry.address is None:
                continue
            number = self.storages[entry.address].number
            if number in self.external_storages and number not in self.kept.originals:
                with torch._C._DisableTorchDispatch():
                    self.kept.originals[number] = copy_of(tensors[slot].untyped_storage())


def opaque_type(tensor: Tensor) -> TensorType:
    """What is said of a tensor that has no plain memory.

    >>> print(opaque_type(torch.eye(2).to_sparse()))
    f32[2, 2]
    """
    layout = str(tensor.layout).removeprefix("torch.")
    if layout == "strided":
        layout = "zero"
    if tensor.dtype in QUANTIZED:
        layout = "quantized"
    elif tensor.is_nested:
        layout = "nested"
    try:
        shape = tuple(int(size) for size in tensor.shape)
    # a nested tensor has no one shape
    except RuntimeError:
        shape = ()
    return TensorType(str(tensor.dtype).removeprefix("torch."), shape, (), layout)


def count_stored(tensor: Tensor) -> int | None:
    """How many elements a sparse or nested tensor holds; None of any other, and where it is not known."""
    try:
        if tensor.is_nested:
            return int(tensor.numel())
        if tensor.layout is torch.sparse_coo:
            return int(tensor._nnz()) * math.prod(tensor.shape[tensor.sparse_dim() :])
        return int(tensor.values().numel()) if tensor.layout in SPARSE else None
    # a fake tensor may have none
    except (RuntimeError, NotImplementedError):
        return None


# ---------------------------------------------------------------- values that leave for Python


def note_escape(
    rec: Tensors, method: str, tensor: Tensor, site: int, *, shares: bool, whole: bool = False
) -> Escape | None:
    """Note that a tensor leaves; ``whole`` means all of its memory and not what it shows alone."""
    if not rec.keep or rec.closed:
        return None
    entry = rec.seen.get(id(tensor))
    value = entry.number if entry is not None and entry() is tensor else -1
    storage = _storage(tensor)
    known = None if storage is None else rec.storages.get(storage._cdata)
    number = -1 if known is None or known() is None else known.number
    escape = Escape(method, value, number, site, rec.count, shares)
    rec.kept.escapes.append(escape)
    if storage is None:
        return escape
    escape.address = storage._cdata
    if whole:
        escape.digest = digest_of_storage(storage)
    else:
        escape.geometry = Geometry(
            tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        )
        escape.digest = digest_of(tensor)
    if shares:
        _lend(rec, storage, escape)
    return escape


def note_storage_escape(
    rec: Tensors, method: str, storage: torch.UntypedStorage, site: int, *, shares: bool
) -> None:
    """Note that a block of memory leaves: its address, or all that is in it."""
    if not rec.keep or rec.closed or storage.device.type == "meta":
        return
    known = rec.storages.get(storage._cdata)
    number = -1 if known is None or known() is None else known.number
    escape = Escape(method, -1, number, site, rec.count, shares)
    escape.address, escape.digest = storage._cdata, digest_of_storage(storage)
    rec.kept.escapes.append(escape)
    if shares:
        _lend(rec, storage, escape)


def note_made_from_python(rec: Tensors, tensor: Tensor, site: int) -> None:
    """After ``torch.tensor`` and its like: note which tensors of one element may be among the values it was given.

    Torch reads tensors in a list by itself, with all modes aside. Whatever is alive and equal to one of them counts.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        contents: set[Any] | None = None
        for entry in list(rec.seen.values()):
            scalar = entry()
            if scalar is None or entry.address is None or scalar.numel() != 1 or scalar is tensor:
                continue
            if contents is None:
                contents = set(map(_key, torch._C.TensorBase.tolist(tensor.detach().reshape(-1))))
            number = torch._C.TensorBase.tolist(scalar.detach().reshape(-1).to(tensor.dtype))[0]
            if _key(number) in contents:
                note_escape(rec, MADE_FROM_PYTHON, scalar, site, shares=False)


def _key(number: Any) -> Any:
    """A number as one that equals itself."""
    return "nan" if isinstance(number, float) and math.isnan(number) else number


def _lend(rec: Tensors, storage: torch.UntypedStorage, escape: Escape) -> None:
    lent = rec.lent.get(storage._cdata)
    if lent is None or lent.storage() is not storage:
        lent = rec.lent[storage._cdata] = LentMemory(storage, digest_of_storage(storage))
    lent.escapes.append(escape)


def look_at_lent(rec: Tensors, tensors: Iterable[Tensor]) -> None:
    """Before an operation touches tensors: see whether somebody wrote to their memory unseen."""
    for tensor in tensors:
        storage = _storage(tensor)
        if storage is not None and storage._cdata in rec.lent:
            _look(rec.lent[storage._cdata], storage)


def settle_lent(rec: Tensors) -> None:
    """At the end of a run: see whether somebody wrote unseen to memory that was given away."""
    for lent in rec.lent.values():
        storage = lent.storage()
        if storage is not None:
            _look(lent, storage)


def take_written(rec: Tensors, written: list[Tensor]) -> None:
    """After an operation wrote to memory that was given away: that is what it holds now."""
    for tensor in written:
        storage = _storage(tensor)
        lent = None if storage is None else rec.lent.get(storage._cdata)
        if storage is not None and lent is not None:
            lent.digest = digest_of_storage(storage)


def _look(lent: LentMemory, storage: torch.UntypedStorage) -> None:
    if lent.storage() is not storage:
        return
    digest = digest_of_storage(storage)
    if digest != lent.digest:
        lent.digest = digest
        for escape in lent.escapes:
            escape.written = True


def overlapping_memory(rec: Tensors) -> list[tuple[int, int]]:
    """Pairs of storages that are two to torch and lie on the same bytes, as a capsule that came back does.

    The second of each is from outside of the recorded operations.
    """
    spans = []
    for known in list(rec.storages.values()):
        storage = known()
        if storage is not None and storage.device.type != "meta" and storage.nbytes():
            begin = torch._C.StorageBase.data_ptr(storage)  # type: ignore[attr-defined]
            if begin:
                spans.append((str(storage.device), begin, begin + storage.nbytes(), known.number))
    spans.sort()
    pairs: list[tuple[int, int]] = []
    # those before that reach the furthest
    device, reach, holder = "", 0, -1
    for where, begin, end, number in spans:
        if where == device and begin < reach:
            # the later number is the one that came back
            first, second = sorted((holder, number))
            if second in rec.external_storages:
                pairs.append((first, second))
        if where != device or end > reach:
            device, reach, holder = where, end, number
    return pairs


# ---------------------------------------------------------------- contents


# older ones of torch have no reading that leaves a block shared that is copied when it is written to
_address: Callable[[Tensor], int] = getattr(
    torch._C.TensorBase, "const_data_ptr", torch._C.TensorBase.data_ptr
)


def digest_of(tensor: Tensor) -> bytes | None:
    """A few bytes that change with any bit of a tensor's elements; None where they cannot be read."""
    if _storage(tensor) is None:
        return None
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            return _digest(_address(plain), plain.nbytes)
    except (RuntimeError, NotImplementedError):
        return None


def digest_of_storage(storage: torch.UntypedStorage) -> bytes | None:
    """A few bytes that change with any bit of a block of memory; None where it cannot be read."""
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            return digest_of(flat)
    except (RuntimeError, NotImplementedError):
        return None


def _digest(address: int, size: int) -> bytes:
    content = (ctypes.c_char * size).from_address(address) if size else b""
    return hashlib.blake2b(content, digest_size=16).digest()


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The plain memory of a tensor, None where it has none with numbers in it."""
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    plain = tensor.layout is torch.strided and tensor.dtype not in QUANTIZED and not tensor.is_nested
    if not plain or tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        return None
    return storage if storage.nbytes() or not tensor.numel() else None
