"""A list of operations from anywhere, checked: what is wrong with it is said with the entry and the key."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_vis.errors import UsageError
from torch_vis.graph import TensorType

UNKNOWN = ""  # the element type of a tensor in a list that does not say


class Entry(NamedTuple):
    """One operation, read and found to be in order."""

    place: int
    name: str
    inputs: list[str]
    outputs: list[str]
    record: Mapping[str, Any]

    def error(self, what: str) -> UsageError:
        """That something is wrong with this operation."""
        return _wrong(self.place, self.record, what)


class Reading:
    """The operations, the type of each tensor, and which operation makes it."""

    def __init__(self, operations: Sequence[Mapping[str, Any]]) -> None:
        if not _is_list(operations):
            raise UsageError(
                "create_onnx_visualization() takes the list that get_operation_sequence() gives, "
                f"not {type(operations).__name__}"
            )
        self.types: dict[str, TensorType] = {}
        self.roles: dict[str, str] = {}
        self.maker: dict[str, int] = {}
        self.entries = [self._entry(place, record) for place, record in enumerate(operations)]
        for entry in self.entries:
            self._note_outputs(entry)

    def _entry(self, place: int, record: Any) -> Entry:
        if not isinstance(record, Mapping):
            raise UsageError(
                f"operations[{place}] is {type(record).__name__} {record!r:.60}, and not a dictionary"
            )
        name = record.get("name")
        if not isinstance(name, str) or not name:
            raise _wrong(place, record, f"'name' must be a text, not {name!r:.60}")
        # outputs first: whoever makes a tensor knows its type best
        outputs = self._tensors(place, record, "outputs", "output_dtypes")
        if "side_outputs" in record:
            outputs += self._tensors(place, record, "side_outputs", "side_output_dtypes")
        inputs = self._tensors(place, record, "inputs", "input_dtypes")
        roles: Any = record.get("input_roles")
        for tensor, role in zip(inputs, roles if _is_list(roles) else (), strict=False):
            self.roles.setdefault(tensor, str(role))
        return Entry(place, name, inputs, outputs, record)

    def _tensors(self, place: int, record: Mapping[str, Any], key: str, dtype_key: str) -> list[str]:
        pairs: Any = record.get(key)
        if not _is_list(pairs):
            raise _wrong(place, record, f"'{key}' must be a list of tensor id and shape, not {pairs!r:.60}")
        dtypes: Any = record.get(dtype_key)
        if dtypes is None:
            dtypes = [UNKNOWN] * len(pairs)
        if not _is_list(dtypes) or len(dtypes) != len(pairs):
            raise _wrong(
                place, record, f"'{dtype_key}' must have one element type for each of '{key}' ({len(pairs)})"
            )
        found = []
        for number, (pair, dtype) in enumerate(zip(pairs, dtypes, strict=True)):
            tensor, shape = _pair(place, record, f"{key}[{number}]", pair)
            self.types.setdefault(tensor, TensorType(str(dtype), shape, ()))
            found.append(tensor)
        return found

    def _note_outputs(self, entry: Entry) -> None:
        for number, tensor in enumerate(entry.outputs):
            first = self.maker.setdefault(tensor, entry.place)
            if first != entry.place or tensor in entry.outputs[:number]:
                raise entry.error(
                    f"outputs[{number}] {tensor!r} is made by operations[{first}] already; a tensor id names "
                    "one version of one tensor, so a write in place needs a new one"
                )

    def ordered(self) -> list[Entry]:
        """The operations, each after those that make what it reads; as they were given where that is so already."""
        left, then = self._waiting()
        ready = [place for place, count in enumerate(left) if not count]
        found = []
        while ready:
            place = heapq.heappop(ready)
            found.append(self.entries[place])
            for other in then.get(place, ()):
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, other)
        if len(found) < len(self.entries):
            stuck = next(place for place, count in enumerate(left) if count)
            raise self.entries[stuck].error("'inputs' come from 'outputs' that come from it: a circle")
        return found

    def _waiting(self) -> tuple[list[int], dict[int, list[int]]]:
        """For each operation the number of others that it waits for, and those that wait for it."""
        left: list[int] = []
        then: dict[int, list[int]] = {}
        for entry in self.entries:
            before = {self.maker[tensor] for tensor in entry.inputs if tensor in self.maker}
            if entry.place in before:
                raise entry.error(
                    "'inputs' and 'outputs' have an id in common; a write in place makes a new one"
                )
            left.append(len(before))
            for other in before:
                then.setdefault(other, []).append(entry.place)
        return left, then


def _pair(place: int, record: Mapping[str, Any], where: str, pair: Any) -> tuple[str, tuple[Any, ...]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise _wrong(place, record, f"{where} must be a pair of tensor id and shape, not {pair!r:.60}")
    tensor, shape = pair
    if not isinstance(tensor, (str, int)) or tensor == "":
        raise _wrong(place, record, f"{where}: a tensor id is a text or a number, not {tensor!r:.60}")
    if not isinstance(shape, (tuple, list)) or not all(_is_size(size) for size in shape):
        raise _wrong(place, record, f"{where}: a shape is a list of sizes, not {shape!r:.60}")
    return str(tensor), tuple("?" if size is None else size for size in shape)


def _is_size(size: Any) -> bool:
    """A number, or a name or None for a size that is not fixed."""
    return size is None or isinstance(size, str) or (type(size) is int and size >= 0)


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes))


def _wrong(place: int, record: Mapping[str, Any], what: str) -> UsageError:
    return UsageError(f"operations[{place}] ({record.get('name')}): {what}")
