"""A recorded run with its live objects: the tensors that a replay starts from, the output, how it was called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.errors import TensorsMissing, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import COSTS
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Role

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.compilers.program import Program
    from torch_vis.capture.containers import PlainArgument
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.graph.metrics import Column, Metrics


# A saved trace opens without torch, so that nothing here may import it before it is used.
Named = list[tuple[str, "torch.Tensor"]]
Flatten = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Named]


class InputLayout(NamedTuple):
    """What a program may ask an input beside its numbers."""

    holder: str | None
    """The first input that lies on the same memory; None where it has no plain memory."""
    place: tuple[Any, ...]
    """Where it lies there, from where that one begins."""
    is_contiguous: bool | None
    requires_grad: bool


class CallSignature:
    """How a run was called: the names of its inputs, and what was beside them. It holds no tensor and no model."""

    def __init__(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], flatten: Flatten
    ) -> None:
        from torch.utils import _pytree as pytree

        self._flatten = flatten
        self._target = _like(target)
        named = flatten(self._target, args, kwargs)
        self.names = [name for name, _ in named]
        # by name: element type, shape and device
        self.given = {name: (tensor.dtype, _shape(tensor), tensor.device) for name, tensor in named}
        self._beside = _beside_tensors(self._target, args, kwargs)
        self._layouts = _layouts(dict(named))
        leaves, self.spec = pytree.tree_flatten((args, dict(kwargs)))
        # reversed, so that a tensor given twice has its first name
        by_tensor = {id(tensor): name for name, tensor in reversed(named)}
        self.leaves = [by_tensor.get(id(leaf)) for leaf in leaves]
        """The leaves of the arguments: the name of each that is a tensor, None for what is not."""
        self.same = _firsts(dict(named))
        """For each input the first one that was the same tensor: itself, mostly."""

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """New inputs under the names of the recorded ones, of the same structure."""
        inputs = dict(self._flatten(self._target, args, kwargs))
        missing = [name for name in self.names if name not in inputs]
        extra = [name for name in inputs if name not in self.given]
        if missing or extra:
            difference = " and ".join(
                f"{word} {', '.join(map(repr, names[:5]))}"
                for word, names in (("lack", missing), ("have", extra))
                if names
            )
            other = [
                f"; {name!r} is {item.text} here and was a tensor"
                for name, item in _beside_tensors(self._target, args, kwargs).items()
                if name in missing
            ]
            raise UsageError(
                f"these inputs {difference}; the recorded run took {', '.join(map(repr, self.names)) or 'none'}"
                + "".join(other[:3])
            )
        self._refuse_others(_beside_tensors(self._target, args, kwargs))
        for name, tensor in inputs.items():
            if inputs[self.same[name]] is not tensor:
                raise UsageError(
                    f"inputs {self.same[name]!r} and {name!r} were one tensor in the recorded run"
                )
            dtype, _, device = self.given[name]
            if tensor.dtype != dtype:
                raise UsageError(f"input {name!r} is {tensor.dtype} and was {dtype} in the recorded run")
            if tensor.device != device:
                raise UsageError(
                    f"input {name!r} is on {tensor.device} and was on {device}; move it with .to({str(device)!r})"
                )
        return inputs

    def _refuse_others(self, given: Mapping[str, PlainArgument]) -> None:
        """Raise where something beside the tensors is another than in the recorded run."""
        for name in [*self._beside, *(name for name in given if name not in self._beside)]:
            was, now = self._beside.get(name), given.get(name)
            kinds = {item.kind for item in (was, now) if item is not None}
            if not kinds & {"value", "array"} or (was is not None and now is not None and was[:2] == now[:2]):
                continue
            if was is not None and now is not None and kinds == {"array"}:
                raise UsageError(
                    f"the run was recorded with other numbers in {name!r}, which is {was.text} and no tensor: they are "
                    "part of what was recorded, so give a tensor instead, or trace again"
                )
            texts = [f"{name}={item.text}" if item is not None else f"no {name!r}" for item in (was, now)]
            raise UsageError(
                f"the run was recorded with {texts[0]} beside its tensors and is given {texts[1]}; another value may "
                "be another program, so trace again"
            )

    def doubts(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Mapping[str, torch.Tensor],
        written: Collection[str],
    ) -> tuple[str, ...]:
        """Why the program might run differently on these inputs; ``written`` are those that it writes to."""
        given = _beside_tensors(self._target, args, kwargs)
        names = [*self._beside, *(name for name in given if name not in self._beside)]
        sentences = [_doubt(name, self._beside.get(name), given.get(name)) for name in names]
        firsts, layouts = _firsts(inputs), _layouts(inputs)
        for name, now in layouts.items():
            was = self._layouts[name]
            if firsts[name] != self.same[name]:
                sentences.append(
                    f"inputs {firsts[name]!r} and {name!r} are one tensor, and were two in the recorded run"
                )
            elif now[:2] != was[:2] and written:
                others = " and ".join(
                    repr(other)
                    for other in dict.fromkeys((was.holder, now.holder))
                    if other not in (None, name)
                )
                sentences.append(
                    f"input {name!r} shares memory with {others} in another way than in the recorded run, and the "
                    "run writes to inputs"
                )
            if now.is_contiguous != was.is_contiguous:
                sentences.append(
                    f"input {name!r} lies {_lies(now)} in memory and lay {_lies(was)} in the recorded run: what the "
                    "program decided by that is as recorded"
                )
            if now.requires_grad != was.requires_grad:
                sentences.append(
                    f"requires_grad of input {name!r} is {now.requires_grad} and was {was.requires_grad}: what the "
                    "program decided by that is as recorded"
                )
        return tuple(sentence for sentence in sentences if sentence)

    def reshaped(self, inputs: Mapping[str, torch.Tensor]) -> list[str]:
        """The inputs that have other sizes than recorded, in words."""
        return [
            f"{name!r} is {list(_shape(tensor))} and was {list(self.given[name][1])}"
            for name, tensor in inputs.items()
            if _shape(tensor) != self.given[name][1]
        ]


def _beside_tensors(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, PlainArgument]:
    from torch_vis.capture.containers import beside_tensors, bound_arguments

    return beside_tensors(bound_arguments(target, args, kwargs))


def _doubt(name: str, was: PlainArgument | None, now: PlainArgument | None) -> str:
    """What is to be said of an argument that is no tensor; nothing where it is the same."""
    if was is not None and now is not None and was.kind == now.kind and was.content == now.content:
        if was.content is not None:
            return ""
    if was is None or now is None or was.kind != now.kind:
        texts = [item.text if item is not None else "not there" for item in (now, was)]
        return f"{name!r} is {texts[0]} and was {texts[1]}: what the program made of it is as recorded"
    if was.kind == "object":
        return (
            f"{name!r} is {now.text}, which is not looked into: what the program took from it is as recorded"
        )
    if was.content[0] != now.content[0]:
        return f"{name!r} is {now.text} and was {was.text}: what the program decided by that is as recorded"
    return (
        f"{name!r} has its items in another order, or others, than in the recorded run: a program that goes through "
        "them would read others"
    )


def _lies(layout: InputLayout) -> str:
    return "in one piece" if layout.is_contiguous else "in pieces or another order"


def _firsts(inputs: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each input the first one that is the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in inputs.items()}


def _layouts(inputs: Mapping[str, torch.Tensor]) -> dict[str, InputLayout]:
    """How inputs lie in memory, those on the same memory beside one another."""
    import torch

    holders: dict[int, tuple[str, int]] = {}
    layouts: dict[str, InputLayout] = {}
    for name, tensor in inputs.items():
        layouts[name] = InputLayout(None, (), None, tensor.requires_grad)
        if tensor.layout is not torch.strided or tensor.is_nested:
            continue
        try:
            offset = int(tensor.storage_offset()) * tensor.element_size()
            holder, start = holders.setdefault(tensor.untyped_storage()._cdata, (name, offset))
        except (RuntimeError, NotImplementedError):
            continue
        place = (offset - start, tuple(tensor.stride())) if holder != name else ()
        layouts[name] = InputLayout(holder, place, tensor.is_contiguous(), tensor.requires_grad)
    return layouts


def _like(target: Callable[..., Any]) -> Callable[..., Any]:
    """Something with the signature of the target that does not keep the target alive."""

    import torch

    def stand_in() -> None: ...

    try:
        called = target.forward if isinstance(target, torch.nn.Module) else target
        stand_in.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        stand_in.__signature__ = None  # type: ignore[attr-defined]
    return stand_in


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def input_values(graph: Graph, names: Sequence[str]) -> dict[str, int]:
    """The value of each input of the run; an input that was never read has none."""
    wanted = set(names)
    values: dict[str, int] = {}
    from_outside = (graph.value_producer < 0) & (graph.value_role == int(Role.INPUT))
    for index in from_outside.nonzero()[0].tolist() if wanted else ():
        name = graph.values[index].name
        if name in wanted:
            values.setdefault(str(name), index)
    return values


def refused_sizes(
    graph: Graph, inputs: Mapping[str, torch.Tensor], bounds: Mapping[str, tuple[int | None, int | None]]
) -> str | None:
    """Why a program whose sizes are open in these bounds cannot take some inputs; None if it can."""
    sizes: dict[str, int] = {}
    for name, value in input_values(graph, list(inputs)).items():
        row, shape = graph.types[graph.value_type[value]], _shape(inputs[name])
        if len(shape) != len(row.shape):
            return f"{name!r} has {len(shape)} dimensions, not {len(row.shape)}"
        for dim, (size, recorded) in enumerate(zip(shape, row.shape)):
            symbol = row.symbols[dim] if row.symbols else ""
            if not symbol and size != recorded:
                return f"size {dim} of {name!r} is fixed at {recorded}"
            least, most = bounds.get(symbol, (None, None))
            if (least is not None and size < least) or (most is not None and size > most):
                return f"size {dim} of {name!r} is {size}"
            if symbol.isidentifier() and sizes.setdefault(symbol, size) != size:
                return f"{symbol} is {sizes[symbol]} elsewhere and {size} in size {dim} of {name!r}"
    return None


class HeldRun(Run):
    """A run, and what of it lives in this process; a file keeps the run alone."""

    output: Any
    """What the traced callable returned."""
    error: BaseException | None
    """The exception that ended the run, if one did."""
    program: Program | None
    """What a compiler's front-end captured, where the trace went through one."""
    kept: KeptTensors | None
    """The tensors that ``check`` and ``run`` start from and compare with; None where none are held."""
    activations: dict[str, list[Any]]
    """What ``keep`` of ``trace`` asked for: for each place the list of what its calls gave."""
    entry: CallSignature | None
    """How the run was called, so that it can be called on other inputs."""

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        limits: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        output: Any = None,
        kept: KeptTensors | None = None,
        error: BaseException | None = None,
        program: Program | None = None,
        entry: CallSignature | None = None,
    ) -> None:
        super().__init__(graph, with_costs(graph, metrics), limits, meta)
        self.output, self.error, self.program = output, error, program
        self.kept, self.entry = kept, entry
        self.activations = {}
        # what the reruns of this run share, once there is one
        self._planner: Any = None

    def needs_tensors(self, purpose: str) -> KeptTensors:
        """The tensors that are held; raises ``TensorsMissing`` where there are none to ``purpose`` with."""
        if self.kept is None and self.meta.get("fake"):
            raise TensorsMissing(f"this was worked out on shapes: there are no numbers to {purpose} it with")
        if self.kept is None:
            raise TensorsMissing(
                "this trace holds no tensors (loaded from a file, released, or traced with hold=False); "
                f"trace again to {purpose} it"
            )
        return self.kept


def with_costs(graph: Graph, metrics: Metrics) -> Metrics:
    """The metrics with the columns of ``COSTS`` added, which are computed when one is first asked for."""

    def compute() -> Mapping[str, Column]:
        from torch_vis.ops.cost import costs

        computed = costs(graph, metrics.get("stored"))
        return {
            name: metrics[name].filled(column) if name in metrics else column
            for name, column in computed.items()
        }

    def formulas_version() -> int:
        from torch_vis.ops.cost.registry import version

        return version()

    return metrics.with_later(COSTS, compute, version=formulas_version)
