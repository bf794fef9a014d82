"""What recording an operation takes that the recorder's clock does not see, so that a single run can do without it.

The recorder takes off a run what it measures itself: from where an operation reaches it to where it hands it back.
Torch takes about as long again to bring an operation there and back: arguments become Python objects and tensors again,
twice. That cannot be timed within a run, but its ratio to what the recorder measures is steady, on a busy machine too.
So it is found once per process, on a few small operations with and without a recorder, and applied to what the recorder
measured in the run itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.modes import (
    functions_aside,
    kept_after_interrupt,
    modes_aside,
    with_gradients,
    without_gradients,
)
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.recorder import ENDED, STARTED, Recorder, clock, get_ident
from torch_vis.graph.call import Call
from torch_vis.graph.types import Floats

ROUNDS, CALLS = 4, 4
# one operation takes this many times what another takes, but not more
LONGEST = 4
# programs are less alike than probes: so far off were models that were tried
ERROR = 0.5
# an argument takes about an eighth of what an operation takes anyway
ARGUMENT = 0.125


class RecordingCost(NamedTuple):
    """What recording takes besides, in parts of what the recorder measures per operation."""

    inside: float
    """Within an operation's own time: the call from Python."""
    around: float
    """Before the recorder sees an operation, and after."""
    differentiated: float
    """The same of an operation that autograd makes a node for."""
    backward: float
    """The same of an operation in backward."""
    scope: float
    """To follow one call of a module."""
    error: float
    """How far off all of it may be, in parts of it."""


# where nothing can be measured: under the user's profiler, say; medians of measurements on several machines
TYPICAL = RecordingCost(inside=0.4, around=0.75, differentiated=0.8, backward=1.0, scope=0.15, error=ERROR)

_measured: RecordingCost | None = None


def recording_cost() -> RecordingCost:
    """The cost of recording, measured once per process."""
    global _measured
    if _measured is not None:
        return _measured
    if torch.autograd._profiler_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return TYPICAL
    if torch._C._dispatch_tls_is_dispatch_key_excluded("Python"):
        return TYPICAL
    with kept_after_interrupt(), modes_aside(), functions_aside(), without_gradients():
        _measured = measure()
    return _measured


def measure() -> RecordingCost:
    """Run small operations with and without a recorder, by turns."""
    kinds = [[_probe(call) for call in calls] for calls in _probes()]
    plain, differentiated, backward = (statistics.mean(probe.extra for probe in kind) for kind in kinds)
    # the last is called from C++: without a recorder, there is no call from Python
    loop = kinds[0][-1]
    inside = min(max(loop.inside / loop.extra, 0.0), 1.0) * plain
    means = [plain, differentiated, backward]
    far = max(abs(probe.extra / mean - 1) for kind, mean in zip(kinds, means) for probe in kind)
    per_operation = statistics.mean(probe.recorder_ns for kind in kinds for probe in kind)
    around, with_node, behind = (max(mean - inside, 0.0) for mean in means)
    return RecordingCost(inside, around, with_node, behind, _scope_ns() / per_operation, max(far, ERROR))


def regular_ns(recorder: Recorder) -> float:
    """What the recorder measured per operation, but for what is irregular, and for interruptions of a busy machine."""
    spent = np.maximum(np.frombuffer(recorder.regular, dtype=np.int64), 0)
    return float(np.minimum(spent, LONGEST * np.median(spent)).mean()) if len(spent) else 0.0


def weights(calls: Sequence[Call]) -> Floats:
    """How long torch takes to hand over each call, relative to one without arguments.

    >>> weights([Call("aten::zeros", ((2, 3),), ()), Call("aten::zeros", (), ())]).tolist()
    [1.375, 1.0]
    """
    return np.array(
        [1 + ARGUMENT * _arguments((*call.args, *call.kwargs)) for call in calls], dtype=np.float64
    )


def _arguments(args: tuple[Any, ...]) -> int:
    return sum(1 + (len(arg) if isinstance(arg, tuple) else 0) for arg in args)


class _Probe(NamedTuple):
    """One probe: what a recorder adds, unseen, in parts of what it measures per operation."""

    extra: float
    inside: float
    recorder_ns: float


def _probes() -> tuple[list[Callable[[], Any]], ...]:
    """Small operations without a gradient, the last of which are called from C++, with one, and in backward."""
    vector, matrix = (torch.ones(size, device="cpu", dtype=torch.float32) for size in (2, (2, 2)))
    step, parameters = vector.reshape(1, 1, 2), [matrix, matrix, vector, vector]
    plain: list[Callable[[], Any]] = [
        lambda: torch.add(vector, vector),
        lambda: vector + 1,
        lambda: matrix.view(4),
        lambda: torch.relu(vector),
        lambda: torch.addmm(vector, matrix, matrix),
        lambda: torch.layer_norm(vector, (2,), vector, vector),
        lambda: torch.as_strided(matrix, (2, 1, 2), (2, 2, 1), 0),
        vector.sum,
        lambda: torch.rnn_tanh(step, step, parameters, True, 1, 0.0, False, False, False),
    ]
    bias, weight = vector.clone().requires_grad_(), matrix.clone().requires_grad_()
    with with_gradients():
        total = torch.addmm(bias, torch.relu(torch.addmm(bias, weight, matrix)), weight.t()).sum()
    differentiated: list[Callable[[], Any]] = [
        torch.enable_grad()(lambda: torch.mul(bias, vector)),
        torch.enable_grad()(lambda: torch.addmm(bias, matrix, weight.t())),
        torch.enable_grad()(lambda: torch.relu(weight)),
    ]
    backward: list[Callable[[], Any]] = [
        lambda: torch.autograd.grad(total, (bias, weight), retain_graph=True)
    ]
    return plain, differentiated, backward


def _probe(call: Callable[[], Any]) -> _Probe:
    recorder = Recorder(keep=False)
    mode = RecordMode(recorder)
    call()
    with mode:
        # the first call of each kind is not like the others
        call()
    operations = recorder.count
    plain, unseen, seen, inside = [], [], [], []
    for _ in range(ROUNDS):
        for _ in range(CALLS):
            begun = clock()
            call()
            plain.append(clock() - begun)
        with mode:
            for _ in range(CALLS):
                recorder.overhead, row = 0, len(recorder.log)
                begun = clock()
                call()
                unseen.append(clock() - begun - recorder.overhead)
                seen.append(recorder.overhead)
                inside.append(_inside_ns(recorder.log, row))
    recorder.closed = True
    alone, measured = _usual(plain), max(_usual(seen), 1)
    return _Probe(
        max((_usual(unseen) - alone) / measured, 0.01),
        (_usual(inside) - alone) / measured,
        measured / operations,
    )


def _usual(times: list[int]) -> float:
    """What it takes where nothing comes between: a busy machine interrupts some."""
    return statistics.quantiles(times, n=4)[0]


def _inside_ns(log: list[int], row: int) -> int:
    """The time of the operations from a row of the log on."""
    total = 0
    while row < len(log):
        total += log[row + ENDED] - log[row + STARTED]
        row += log[row]
    return total


def _scope_ns() -> float:
    """To enter and leave the scope of a module."""
    recorder, thread = Recorder(keep=False), get_ident()
    times = []
    for _ in range(ROUNDS * CALLS):
        begun = clock()
        recorder.leave(recorder.enter(0, thread), thread)
        times.append(clock() - begun)
    return _usual(times)
