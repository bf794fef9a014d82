"""A recorded run with its live objects: the tensors that a replay starts from, the output, how it was called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_vis.errors import TensorsMissing, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import COSTS
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Role

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.compilers.program import Program
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.graph.metrics import Column, Metrics


# A saved trace opens without torch, so that nothing here may import it before it is used.
Named = list[tuple[str, "torch.Tensor"]]
Flatten = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Named]


class CallSignature:
    """How a run was called: the names of its inputs, and the literals among them. It holds no tensor and no model."""

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
        self._literals = _literals(args, kwargs)
        leaves, self.spec = pytree.tree_flatten((args, dict(kwargs)))
        # reversed, so that a tensor given twice has its first name
        by_tensor = {id(tensor): name for name, tensor in reversed(named)}
        self.leaves = [by_tensor.get(id(leaf)) for leaf in leaves]
        """The leaves of the arguments: the name of each that is a tensor, None for what is not."""
        first: dict[int, str] = {}
        # for each input the first one that was the same tensor: itself, mostly
        self.same = {name: first.setdefault(id(tensor), name) for name, tensor in named}

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
            raise UsageError(
                f"these inputs {difference}; the recorded run took {', '.join(map(repr, self.names)) or 'none'}"
            )
        # 1, 1.0 and True are equal, and make another program
        given = _literals(args, kwargs)
        if given != self._literals or [*map(type, given)] != [*map(type, self._literals)]:
            raise UsageError(
                f"the run was recorded with {self._literals} beside its tensors; another value may be another program, "
                "so trace again"
            )
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

    def reshaped(self, inputs: Mapping[str, torch.Tensor]) -> list[str]:
        """The inputs that have other sizes than recorded, in words."""
        return [
            f"{name!r} is {list(_shape(tensor))} and was {list(self.given[name][1])}"
            for name, tensor in inputs.items()
            if _shape(tensor) != self.given[name][1]
        ]


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


def _literals(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    from torch.utils import _pytree as pytree

    from torch_vis.capture.containers import PLAIN

    leaves = pytree.tree_leaves((args, [kwargs[name] for name in sorted(kwargs)]))
    return [leaf for leaf in leaves if isinstance(leaf, PLAIN) and leaf is not None]


def input_values(graph: Graph, names: Sequence[str]) -> dict[str, int]:
    """The value of each input that the run took; one that it never touched has none."""
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
