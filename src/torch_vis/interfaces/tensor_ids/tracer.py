"""Connected tensor tracing: what a block of code did, as a sequence of named operations linked by their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from torch_vis._trace import Trace
from torch_vis.api import Recording
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.text import many
from torch_vis.interfaces.tensor_ids.calls import Calls
from torch_vis.interfaces.tensor_ids.onnx import create_onnx_visualization
from torch_vis.interfaces.tensor_ids.sequence import (
    LEVELS,
    Level,
    Operation,
    OperationSteps,
    operation_sequence,
)

__all__ = ["TensorTracer", "create_onnx_visualization", "get_operation_sequence", "trace_tensor_ids"]


class TensorTracer:
    """Records the block that it is entered for; ``trace_tensor_ids`` makes one.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(2, 3)
    >>> with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
    ...     y = torch.relu(x).view(6)
    >>> tracer
    <TensorTracer: 2 operations>
    >>> tracer.trace.check().results
    1
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._used = False

    def __enter__(self) -> TensorTracer:
        if self._used:
            raise UsageError("a tracer records one block; call trace_tensor_ids() again for another")
        self._recording.__enter__()
        self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording.__exit__(kind, error, traceback)

    @property
    def trace(self) -> Trace:
        """The whole recording, for every view and exporter; after an exception, what ran until then.

        >>> import torch, torch_vis as tv
        >>> with tv.trace_tensor_ids() as tracer:
        ...     y = torch.ones(2) * 3
        >>> [node.op for node in tracer.trace.graph.nodes]
        ['aten::ones', 'aten::mul']
        """
        if not self._used or self._recording.is_open:
            raise UsageError(
                "the block is still recording; ask after it has ended"
                if self._used
                else "nothing is recorded yet; use it in a with statement"
            )
        return self._recording

    def get_operation_sequence(self, *, level: Level = "leaf") -> list[Operation]:
        """Every operation of the block, in order: see ``torch_vis.get_operation_sequence``.

        >>> import torch, torch_vis as tv
        >>> x = torch.ones(2, 3)
        >>> with tv.trace_tensor_ids(input_tensors=[x]) as tracer:
        ...     y = torch.relu(x).view(6)
        >>> for operation in tracer.get_operation_sequence():
        ...     print(operation["name"], operation["inputs"], operation["outputs"], operation["parents"])
        torch.relu [('input.0', (2, 3))] [('%1', (2, 3))] []
        Tensor.view [('%1', (2, 3))] [('%2', (6,))] [0]
        """
        return get_operation_sequence(self.trace, level=level)

    def __repr__(self) -> str:
        if not self._used or self._recording.is_open:
            return f"<TensorTracer: {'recording' if self._used else 'not started'}>"
        return f"<TensorTracer: {many(OperationSteps(self.trace.graph, 'leaf').count, 'operation')}>"


def trace_tensor_ids(
    input_tensors: Any = None, *, functions: Sequence[Callable[..., Any]] = (), keep: bool = True
) -> TensorTracer:
    """Record a block of code as operations under their public names, connected by the tensors that pass between them.

    ``input_tensors`` names the tensors that come from outside: a tensor, or lists, tuples and dictionaries of them,
    however nested; a dictionary's keys are the names. It may be left out: what the block reads is found in any case.
    ``backward()`` and optimizer steps in the block are recorded too, and each gradient is linked to its operation.

    Custom operators and classes of ``torch.autograd.Function`` are operations of their own accord. ``functions`` adds
    Python functions of yours that are to be one operation each, whatever they call. ``keep=False`` holds no tensors, so
    that ``tracer.trace.check()`` is not possible.

    Torch's fast path for attention in inference is not taken while calls are named; ``tracer.trace.limits`` says where
    that was so. Everything else runs as it would have.

    >>> import torch, torch_vis as tv
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    >>> with tv.trace_tensor_ids(input_tensors=[x]) as tracer:
    ...     loss = model(x).sum()
    ...     loss.backward()
    >>> [operation["name"] for operation in tracer.get_operation_sequence()][:3]
    ['torch.nn.functional.linear', 'Tensor.sum', 'torch.ones_like']
    """
    from torch_vis.capture.session import Capture

    if callable(functions) or not isinstance(functions, Sequence):
        raise UsageError(f"functions is a list of functions, not {type(functions).__name__}")
    capture = Capture(keep=keep, functions=True, declared=functions)
    capture.inputs = _name_inputs(input_tensors)
    return TensorTracer(Recording(capture))


def get_operation_sequence(traced: TensorTracer | Trace, *, level: Level = "leaf") -> list[Operation]:
    """Every operation of a tracer or of a trace, in the order in which they began, as plain dictionaries.

    An operation is one call of a public function, under the name that a program calls it by. The function that a
    program or a module of torch's calls is what counts: ``F.cross_entropy`` is one operation, and what it calls in turn
    is not shown. There is one exception: ``F.multi_head_attention_forward`` is the whole of a module under the name of
    a function, and shown as the calls that it makes; ``level="outermost"`` keeps it in one, and a torch that has no
    ``torch.overrides.redispatch_function`` yet (2.11) always does. What runs outside of any such call goes by its
    dispatcher name (``aten::mul``); in a trace that was recorded without ``functions=True``, that is all. What backward
    runs for one operation in one go is one operation, ``gradient of …``.

    ===================  ===========================================================================================
    key                  what it holds
    ===================  ===========================================================================================
    ``id``               the operation's number
    ``name``             ``torch.nn.functional.conv2d``, ``Tensor.view``, ``torch.ops.mylib.foo``, ``gradient of …``
    ``phase``            ``forward``, ``backward`` or ``optimizer``
    ``inputs``           the tensors it was given: pairs of tensor id and shape, in the order of the call
    ``outputs``          the tensors it gave back, as pairs too; where it gives none back, those that it changed
    ``side_outputs``     what else it made that others read: kept for the gradient, or written to on the way
    ``input_dtypes``     the element type of each input; ``output_dtypes`` and ``side_output_dtypes`` likewise
    ``input_roles``      what each input is to the run: ``activation``, ``input``, ``parameter``, ``buffer``…
    ``parents``          ids of the operations whose outputs it takes, and of those whose bytes it reads through
                         another tensor: a reader of a view depends on the view and on who wrote to its memory
    ``gradient_of``      the id of the operation whose gradient it computes, or None
    ``gradients``        ids of the operations that compute its gradient
    ``module``           the path of the module it ran in, ``""`` for the outermost or none
    ``source``           the line of the program, ``file:line``, or None
    ``arguments``        its literal arguments by name, as the call was written (an index as text)
    ``dispatched``       the dispatcher operations that it ran
    ``nodes``            their numbers in ``trace.graph``
    ``time_ns``          the time that they took
    ``memory_bytes``     the bytes that they allocated
    ``flops``, ``macs``, ``moved_bytes``  what they computed and moved; None where one of them is not known
    ===================  ===========================================================================================

    A tensor id names one version of one tensor and nothing else: a write in place makes a new one (``weight@1``), and
    so does a tensor that happens to take the memory of one that is gone. Tensors with a name of their own go by it, the
    others by their number in the graph: ``%12`` is ``trace.graph.values[12]``. Where a part was assigned to
    (``h[:, 0] = 0``), the whole is a new version too, ``%12@1``.

    Of a gradient, of a function of yours or of ``autograd.Function``, and of any operation of a trace that was not just
    recorded by ``trace_tensor_ids`` or ``record``, the call itself is not known: its inputs are what its dispatcher
    operations read (computed tensors first, then parameters, then those that it depends on through an alias), its
    outputs all that they made, its arguments theirs.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(2)
    >>> with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
    ...     y = x.add_(1) * x
    >>> add, mul = tv.get_operation_sequence(tracer)
    >>> add["outputs"], mul["inputs"], mul["parents"]
    ([('x@1', (2,))], [('x@1', (2,)), ('x@1', (2,))], [0])
    """
    if level not in LEVELS:
        raise no_match("level", str(level), LEVELS)
    trace = traced.trace if isinstance(traced, TensorTracer) else traced
    if not isinstance(trace, Trace):
        raise UsageError(f"get_operation_sequence() takes a tracer or a trace, not {type(traced).__name__}")
    if isinstance(trace, Recording) and trace.is_open:
        raise UsageError("the block is still recording; ask after it has ended")
    return operation_sequence(trace.graph, trace.metrics, level, Calls(trace))


def _name_inputs(input_tensors: Any) -> list[tuple[str, Any]]:
    from torch.utils._pytree import tree_leaves

    from torch_vis.capture.containers import named_tensors

    tensors = list(named_tensors(input_tensors, "" if isinstance(input_tensors, Mapping) else "input"))
    if not tensors and any(leaf is not None for leaf in tree_leaves(input_tensors)):
        raise UsageError(
            f"input_tensors holds no tensor: {type(input_tensors).__name__} {input_tensors!r:.60}; "
            "give the tensors themselves, or nothing"
        )
    return tensors
