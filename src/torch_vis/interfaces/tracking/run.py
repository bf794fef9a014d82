"""Running and recording for the tracking interface: which capture serves the switches, and what is read off it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from torch_vis._trace import Trace
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.modules_only import LayerCapture, ModuleBoundary
from torch_vis.capture.recording.recorder import Recorder, get_ident
from torch_vis.capture.session import Capture, name_inputs, run_backward
from torch_vis.capture.state import StateSnapshot
from torch_vis.capture.undo import Context, Undo
from torch_vis.errors import NothingToDifferentiate, UsageError
from torch_vis.graph.run import Limit
from torch_vis.interfaces.tracking.graph import TrackingRecord

SCALARS = (bool, int, float, str, type(None))
LONGEST, LONGEST_TEXT = 16, 200  # longer sequences and texts are data, not settings
NO_BACKWARD = Limit(
    "no backward pass was run: no floating output requires a gradient (frozen, or under no_grad)",
    kind="missing",
)
NOT_METERED = Limit("memory was not tracked, so the graph does not know when memory was freed", kind="memory")


class TrackingSession(Context[Any]):
    """One tracked stretch of a program; ``record`` has it when it is over."""

    def __init__(
        self,
        model: Any,
        *,
        memory: bool,
        timing: bool,
        operations: bool,
        keep: bool = False,
        tracker: Any = None,
    ) -> None:
        # what ``as`` names, held until then
        self._entering = tracker
        self._tracker = None if tracker is None else weakref.ref(tracker)
        self.record: TrackingRecord | None = None
        roots = [model] if isinstance(model, torch.nn.Module) else []
        self.memory, self.timing, self.operations = memory, timing, operations
        self.capture: Capture
        if operations:
            self.capture = Capture(*roots, keep=keep, timing=timing, memory=memory)
            self.boundary = self.capture.recorder.call_observer = ModuleBoundary(self.capture.recorder)
        else:
            self.capture = LayerCapture(*roots, timing=timing, memory=memory)
            self.boundary = self.capture.boundary
        self.thread = 0

    def _begin(self, undo: Undo) -> Any:
        self.thread = get_ident()
        undo.enter(self.capture)
        tracker, self._entering = self._entering, None
        return tracker

    def _ended(self, error: BaseException | None) -> None:
        # nobody is there to ask for it
        if self._tracker is not None and self._tracker() is not None:
            self.record = self.finish()

    def finish(self, *, whole: bool = False, backward: bool = False) -> TrackingRecord:
        """What was recorded; no tensor is held any more. ``whole``: it was one run of the model."""
        run = self.capture.finish().run
        meta = run.meta
        if not self.timing:
            meta.update(wall_ns=None, overhead_ns=None, overhead_error_ns=None)
        if self.operations and not self.memory:
            run.limits += (NOT_METERED,)
        rec = self.capture.recorder
        facts, states = _facts(rec)
        parameters = self.capture.parameters()
        devices = [*meta["devices"], *(str(p.device) for p in parameters)]
        meta["devices"] = list(dict.fromkeys(devices))
        meta["backward"] = backward
        own = None if self.operations or not self.memory else self.boundary.own_bytes
        start = rec.scopes[0][2]
        spans = [
            (begun - start, ended - begun if ended else None) for begun, ended in self.boundary.backwards
        ]
        return TrackingRecord(
            trace=Trace.of(run),
            operations=self.operations,
            whole=whole,
            backward=backward,
            recomputed=_recomputed(rec),
            facts=facts,
            states=states,
            input_shapes=self.boundary.input_shapes,
            output_shapes=self.boundary.output_shapes,
            own_bytes=own,
            result_bytes=self.boundary.result_bytes,
            passed=self.boundary.passed,
            unknown_inputs=self.boundary.unknown_inputs,
            backwards=spans,
            parameters=_counts(parameters) if self.capture.roots else None,
            devices=tuple(meta["devices"]),
        )


def run_once(
    model: Callable[..., Any], given: Any, *, memory: bool, timing: bool, operations: bool
) -> TrackingRecord:
    """One forward and one backward pass, recorded; model, inputs and random streams are left as they were."""
    args, kwargs = without_history(arguments(model, given))
    inputs = name_inputs(model, args, kwargs)
    session = TrackingSession(model, memory=memory, timing=timing, operations=operations, keep=operations)
    capture = session.capture
    # Where operations are followed, the recorder keeps what is written to from before.
    contents: Literal["all", "none"] = "none" if operations else "all"
    with StateSnapshot.of_model(model, [tensor for _, tensor in inputs], contents=contents) as state:
        state.set_gradients_aside()
        state.watch(capture.recorder.kept)
        capture.inputs = inputs
        if not operations:
            session.boundary.hand(tensor for _, tensor in inputs)
        capture.has_output = True
        with capture:
            output = model(*args, **kwargs)
            state.set_gradients_aside(output)
            backward = _differentiated(output)
        if operations:
            capture.output = output
        record = session.finish(whole=True, backward=backward)
        capture.output = output = None
    trace = record.trace
    trace.limits += () if backward else (NO_BACKWARD,)
    trace.limits += tuple(
        Limit(f"{name} was changed by the run and could not be put back", kind="altered")
        for name in state.lost
    )
    return record


def _differentiated(output: Any) -> bool:
    """Run backward from an output, if there is anything to differentiate."""
    try:
        run_backward(output, None)
    except NothingToDifferentiate:
        return False
    return True


def without_history(items: Any) -> Any:
    """The same arguments, with tensors that come out of a graph of the user's cut off from it."""
    if not any(tensor.grad_fn is not None for _, tensor in named_tensors(items)):
        return items

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.grad_fn is None else tensor.detach().requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, cut, items)


def arguments(model: Callable[..., Any], given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with: a tuple or list of positional arguments, a mapping of keyword arguments, or one.

    A container that the model's ``forward`` cannot take in pieces, but can take whole, is the one argument.

    >>> arguments(lambda x: x, {"x": 1}), arguments(lambda batch: batch, {"x": 1, "y": 2})
    (((), {'x': 1}), (({'x': 1, 'y': 2},), {}))
    """
    whole: tuple[tuple[Any, ...], dict[str, Any]] = (given,), {}
    spread: tuple[tuple[Any, ...], dict[str, Any]]
    if type(given) in (tuple, list):
        spread = tuple(given), {}
    elif not isinstance(given, Mapping):
        return whole
    elif all(isinstance(key, str) for key in given):
        spread = (), dict(given)
    elif _takes(model, *whole) is not False:
        return whole
    else:
        raise UsageError(
            "a dictionary of inputs is passed as keyword arguments, so its keys must be strings; "
            "this model does not take it as one argument either"
        )
    return whole if _takes(model, *spread) is False and _takes(model, *whole) else spread


def _takes(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Whether a model can be called with these arguments; None where its signature is not to be had."""
    called = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _recomputed(rec: Recorder) -> list[bool]:
    """For each call, whether it ran during backward."""
    recomputed: list[bool] = []
    for number, parent, _, _, _, in_backward in rec.scopes:
        own = bool(in_backward) and rec.modules[number].kind == "module"
        recomputed.append(own or (parent >= 0 and recomputed[parent]))
    return recomputed


def _facts(rec: Recorder) -> tuple[list[dict[str, Any] | None], list[dict[str, Any]]]:
    """For each call, the parameters and settings of its module, and whether that was training."""
    of_module: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
    for owner, _, _, _ in rec.modules:
        if isinstance(owner, torch.nn.Module):
            of_module.append(({**_parameters(owner), **_settings(owner)}, {"training": owner.training}))
        else:
            of_module.append((None, {}))
    rows = [of_module[number] for number, *_ in rec.scopes]
    return [facts for facts, _ in rows], [state for _, state in rows]


def _parameters(module: torch.nn.Module) -> dict[str, Any]:
    parameters = {}
    for name, parameter in module._parameters.items():
        if parameter is None or isinstance(parameter, torch.nn.UninitializedParameter):
            continue
        parameters[name] = {
            "shape": [int(size) for size in parameter.shape],
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "count": parameter.numel(),
            "trainable": parameter.requires_grad,
        }
    return parameters


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes that say how a module is set up: numbers, short texts and short sequences of these."""
    return {
        name: list(item) if isinstance(item, (tuple, list)) else item
        for name, item in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_setting(item)
    }


def _is_setting(item: Any) -> bool:
    if isinstance(item, str):
        return len(item) <= LONGEST_TEXT
    if isinstance(item, (tuple, list)):
        return 0 < len(item) <= LONGEST and all(isinstance(part, (bool, int, float, str)) for part in item)
    return isinstance(item, SCALARS)


def _counts(parameters: list[torch.nn.Parameter]) -> tuple[int, int]:
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in parameters]
    return sum(count for count, _ in counts), sum(count for count, trains in counts if trains)
