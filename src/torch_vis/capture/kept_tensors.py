"""The tensors and other live objects that a trace keeps, from which a replay starts and with which it compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch


class RngState(NamedTuple):
    """The state of a random generator before an operation drew from it."""

    generator: torch.Generator | None
    device: str
    state: torch.Tensor


class TensorVersion(NamedTuple):
    """What changes when a tensor is written to, cast or given other memory."""

    # -1 for inference tensors, which count no writes
    writes: int
    dtype: torch.dtype
    # of the storage, 0 where there is none
    address: int


class Geometry(NamedTuple):
    """How a tensor lies on its memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Escape:
    """A tensor that left for Python without an operation: as numbers, as an array, as an address, as text."""

    method: str
    value: int
    """Its value, -1 where no operation of the run had it."""
    storage: int
    """Its block of memory, -1 where no operation touched it."""
    site: int
    """The user's line, as the recorder numbers it."""
    after: int
    """How many operations had run."""
    shares: bool
    """Whether what it left as lies on the tensor's own memory."""
    sizes: bool = False
    """Whether torch took sizes from it, so that with other numbers other operations would run."""
    address: int = 0
    """Of its memory, 0 where it has none that is plain."""
    geometry: Geometry | None = None
    """How it lies there; None where all of the memory left."""
    digest: bytes | None = None
    """Of what left; None where that cannot be read."""
    written: bool = False
    """Whether somebody wrote to the memory through what it left as."""
    inputs: tuple[str, ...] = ()
    """The names of the inputs on whose memory it lies."""
    where: str = ""
    """The user's line, in words."""


class ModuleMode(NamedTuple):
    """Whether a module that behaves otherwise in training was in training mode."""

    path: str
    # a weak reference: a trace holds no model
    module: Any
    training: bool


class RaisedOp(NamedTuple):
    """An operation that raised, after which the program may have gone on."""

    op: str
    # what it was given
    values: tuple[int, ...]
    # the user's line, in words
    where: str


def _no_calls() -> tuple[dict[int, Any], dict[int, Any]]:
    return {}, {}


@dataclass
class KeptTensors:
    """What a trace holds beside its graph, unless ``hold=False``; a file has none of it.

    These are what a replay starts from. Activations that a user selects with ``keep=`` are not among them.
    """

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Memory from outside the run, by storage number."""
    originals: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """A copy of its contents from before the run first wrote to it."""
    opaque_tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors from outside the run that have no plain memory (sparse, nested, quantized), by value number."""
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    """The results of the run, by result number."""
    opaque_outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Outputs of operations that could not be looked into, by node number."""
    rng_states: dict[int, RngState] = field(default_factory=dict)
    """Random states that are not what the random operation before left behind, by node number."""
    python_values: dict[int, Any] = field(default_factory=dict)
    """Values that left for Python (what ``.item()`` or a branch on a tensor saw), by node number."""
    escapes: list[Escape] = field(default_factory=list)
    """Tensors that left for Python without an operation."""
    raised: list[RaisedOp] = field(default_factory=list)
    """Operations that raised."""
    started: list[str] = field(default_factory=list)
    """Threads and processes that the run started, with the user's line, in words."""
    overlaps: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of blocks that are two to torch and lie on the same bytes."""
    inputs: dict[str, tuple[int, Geometry]] = field(default_factory=dict)
    """The block of each input that lies on plain memory the run touched, and how it lies there."""
    read_calls: Callable[[], tuple[dict[int, Any], dict[int, Any]]] = _no_calls
    """Makes ``given`` and ``returned``, when somebody asks for the first time."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Arguments with no literal form (generators, functions), by the text that stands for them."""
    versions: list[tuple[str, torch.Tensor, TensorVersion]] = field(default_factory=list)
    """The versions of named tensors at the end of the run, to see which were changed since."""
    modes: list[ModuleMode] = field(default_factory=list)
    """The modes of the modules at the end of the run, of those whose code looks at it."""

    @property
    def given(self) -> dict[int, Any]:
        """What each call of a module was given, by scope number: a form of values, by the names of the arguments."""
        return self._calls[0]

    @property
    def returned(self) -> dict[int, Any]:
        """What each call of a module returned, as a form of values, by scope number."""
        return self._calls[1]

    @cached_property
    def _calls(self) -> tuple[dict[int, Any], dict[int, Any]]:
        read, self.read_calls = self.read_calls, _no_calls
        return read()

    @property
    def holds_numbers(self) -> bool:
        """Whether there are numbers to replay: a run on meta or fake tensors leaves shapes alone."""
        return not any(
            tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor"
            for tensor in self.results.values()
        )

    def changed(self) -> list[str]:
        """The names of the tensors that were written to since the run ended."""
        return [name for name, tensor, version in self.versions if version_of(tensor) != version]

    def stale(self) -> list[str]:
        """Those of the changed tensors that a replay starts from, and of which no earlier copy is kept."""
        uncopied = {s._cdata for number, s in self.storages.items() if number not in self.originals}
        return [
            name
            for name, tensor, version in self.versions
            if (now := version_of(tensor)) != version and now.address in uncopied
        ]

    def other_modes(self) -> dict[bool, list[str]]:
        """The modules that are in another mode than when the run ended, by whether that is training mode now."""
        other: dict[bool, list[str]] = {}
        for path, reference, training in self.modes:
            module = reference()
            now = None if module is None else mode_of(module)
            if now is not None and now != training:
                other.setdefault(now, []).append(path or type(module).__name__)
        return other


def copy_of(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A block of memory with the same contents; a block of the meta device, which has none, is its own copy."""
    if storage.device.type == "meta":
        return storage
    return torch.UntypedStorage(storage.nbytes(), device=storage.device).copy_(storage)


def python_part(result: Any) -> Any:
    """What an operator gave that is no tensor.

    >>> python_part(2.5), python_part((torch.ones(1), 3))
    (2.5, (3,))
    """
    if not isinstance(result, (tuple, list)):
        return result
    parts = (part for part in result if not isinstance(part, torch.Tensor))
    return tuple(python_part(part) for part in parts)


def mode_of(module: torch.nn.Module) -> bool | None:
    """Whether a module is in training mode, by its plain attribute: no code of the module runs for it."""
    training = vars(module).get("training")
    return training if isinstance(training, bool) else None


def version_of(tensor: torch.Tensor) -> TensorVersion:
    """The version of a tensor now."""
    try:
        address = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        address = 0
    return TensorVersion(-1 if tensor.is_inference() else tensor._version, tensor.dtype, address)
