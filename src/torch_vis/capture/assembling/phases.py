"""What a training step does with its gradients outside of backward: clipping, unscaling, an update by hand.

Such operations belong with the optimizer and not with forward. They run outside of every module, nothing differentiates
them, and they read a gradient, or what others of them made of it, and besides that nothing but state and what is made
of it. What also reads an input or an activation, as a saliency or an attack on the input does, computes something new,
unless it writes to a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import table
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.graph.types import Bools, Ints


class GradientReads(NamedTuple):
    """What operations read, in their order: the reader, what made the value, whether it is a gradient, and state."""

    start: Ints
    maker: Ints
    gradient: Bools
    kept: Bools


def on_gradients(possible: Bools, writes: Bools, reads: GradientReads) -> Ints:
    """The operations, of those that are possible, that work on gradients; ``writes`` are those that write to one.

    >>> reads = GradientReads(np.array([0, 1, 3, 5]), np.array([-1, 0, -1, 1, 1]), np.array([1, 0, 0, 0, 0]) > 0,
    ...               np.array([0, 0, 1, 0, 0]) > 0)
    >>> on_gradients(np.ones(3, dtype=bool), np.zeros(3, dtype=bool), reads).tolist()
    [0, 1, 2]
    """
    count = len(possible)
    reader = np.repeat(np.arange(count), np.diff(reads.start))
    if not (possible[reader] & reads.gradient).any():
        return np.zeros(0, dtype=np.int64)
    found, free = bytearray(count + 1), bytearray(count + 1)  # the last is for values that nothing made
    edges, makers = reads.start.tolist(), reads.maker.tolist()
    gradient, kept, may, into = (column.tolist() for column in (reads.gradient, reads.kept, possible, writes))
    for node in range(count):
        rows = range(edges[node], edges[node + 1])
        free[node] = all(kept[row] or free[makers[row]] for row in rows)
        if may[node] and any(gradient[row] or (not kept[row] and found[makers[row]]) for row in rows):
            own = (gradient[row] or kept[row] or found[makers[row]] or free[makers[row]] for row in rows)
            found[node] = into[node] or all(own)
    return np.flatnonzero(np.frombuffer(found, dtype=np.uint8)[:-1])


class Operations(NamedTuple):
    """Along the operations: the scope that each ran in, whether gradients were recorded, whether it was backward."""

    scope: Ints
    grad_mode: Ints
    is_backward: Bools
    time_ns: Ints


def lift(rec: Recorder, ran: Operations) -> tuple[Ints, Bools]:
    """Take closures out of their optimizer: the scope of each operation, and which are the optimizer's own.

    Calls of modules come to stand beside the optimizer's step and not in it, and their time is taken off its own.
    """
    scopes = table(rec.scopes, 6)
    optimizer = _optimizers(rec, scopes)
    around = optimizer[ran.scope]
    own = around >= 0
    if not own.any():
        return ran.scope, own
    differentiable = np.array([_records_gradients(rec, scope) for scope in range(len(scopes))], dtype=bool)
    closure = own & (ran.is_backward | ((ran.grad_mode == 1) & ~differentiable[around]))
    outside = ran.scope.copy()
    direct = closure & (ran.scope == around)
    outside[direct] = scopes[around[direct], 1]
    spent = np.bincount(around[direct], weights=ran.time_ns[direct], minlength=len(scopes)).astype(np.int64)
    _move(rec, scopes, optimizer, _scopes_of(ran.scope[closure], ran.scope[own & ~closure], scopes), spent)
    return outside, own & ~closure


def _optimizers(rec: Recorder, scopes: Ints) -> Ints:
    """For each scope the optimizer's step that it is in, -1 for none; a call of a module inside is not in it."""
    kinds = [kind for *_, kind in rec.modules]
    found: list[int] = []
    for scope, (module, parent) in enumerate(scopes[:, :2].tolist()):
        inside = found[parent] if parent >= 0 and kinds[module] not in ("module", "compiled") else -1
        found.append(scope if kinds[module] == "optimizer" else inside)
    return np.asarray(found, dtype=np.int64)


def _records_gradients(rec: Recorder, scope: int) -> bool:
    owner, _, _, kind = rec.modules[rec.scopes[scope][0]]
    return kind == "optimizer" and bool(getattr(owner, "defaults", {}).get("differentiable"))


def _scopes_of(closure: Ints, own: Ints, scopes: Ints) -> Bools:
    """The scopes (of functions) in which only operations of a closure ran."""
    found = np.zeros(len(scopes), dtype=bool)
    found[closure] = True
    found[own] = False
    return found


def _move(rec: Recorder, scopes: Ints, optimizer: Ints, of_closure: Bools, spent: Ints) -> None:
    kinds = [kind for *_, kind in rec.modules]
    for scope, (module, parent, began, ended, own, again) in enumerate(scopes.tolist()):
        if parent < 0 or optimizer[parent] != parent or kinds[module] == "optimizer":
            continue
        if kinds[module] in ("module", "compiled") or of_closure[scope]:
            rec.scopes[scope] = (module, int(scopes[parent, 1]), began, ended, own, again)
            spent[parent] += max(0, ended - began - own) if ended else 0
    for scope in np.flatnonzero(spent).tolist():
        module, parent, began, ended, own, again = rec.scopes[scope]
        rec.scopes[scope] = (module, parent, began, ended, own + int(spent[scope]), again)
