"""Which operations are the optimizer's: its own steps without their closures, and work on gradients outside of it.

A closure runs a forward and a backward inside ``optimizer.step()``, which are no work of the optimizer's: LBFGS calls
its closure several times in a step, and Lightning runs every training step as one. The optimizer computes without
recording gradients and its closure with it, so that tells the two apart.

Clipping, unscaling or an update by hand, on the other hand, belong with the optimizer and not with forward. Such
operations run outside of every module, nothing differentiates them, and they read a gradient, or what others of them
made of it, and besides that nothing but state and what is made of it. What also reads an input or an activation, as a
saliency or an attack on the input does, computes something new, unless it writes to a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import OpRows, ScopeRows, read_scopes
from torch_vis.capture.recording.recorder import FORWARD, Recorder
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints


class GradientReads(NamedTuple):
    """What operations read, in order: where each one's reads begin, what made the value, whether it is a gradient, and
    whether it is state."""

    start: Ints
    maker: Ints
    gradient: Bools
    state: Bools


def lift_closures(rec: Recorder, rows: OpRows) -> tuple[Ints, Bools]:
    """Take closures out of their optimizer: the scope of each operation, and which are the optimizer's own.

    Calls of modules come to stand beside the optimizer's step and not in it, and their time is taken off its own.
    """
    scopes = read_scopes(rec)
    optimizer = _optimizers(rec, scopes)
    around = optimizer[rows.scope]
    own = around >= 0
    if not own.any():
        return rows.scope, own
    differentiable = np.array([_records_gradients(rec, module) for module in scopes.module.tolist()])
    closure = own & ((rows.backward != FORWARD) | ((rows.grad_mode == 1) & ~differentiable[around]))
    lifted = rows.scope.copy()
    direct = closure & (rows.scope == around)
    lifted[direct] = scopes.parent[around[direct]]
    time_ns = (rows.stop - rows.start)[direct]
    spent = np.bincount(around[direct], weights=time_ns, minlength=len(optimizer)).astype(np.int64)
    # scopes of functions in which only operations of a closure ran
    of_closure = np.zeros(len(optimizer), dtype=bool)
    of_closure[rows.scope[closure]] = True
    of_closure[rows.scope[own & ~closure]] = False
    _move_scopes(rec, scopes, optimizer, of_closure, spent)
    return lifted, own & ~closure


def _optimizers(rec: Recorder, scopes: ScopeRows) -> Ints:
    """For each scope the optimizer's step that it is in, -1 for none; a call of a module inside is not in it."""
    kind = np.array([row.kind for row in rec.modules])[scopes.module]
    nearest = Tree(scopes.parent).nearest(np.isin(kind, ["optimizer", "module", "compiled"]))
    return np.where((nearest >= 0) & (kind[nearest] == "optimizer"), nearest, -1)


def _records_gradients(rec: Recorder, module: int) -> bool:
    owner, _, _, kind = rec.modules[module]
    return kind == "optimizer" and bool(getattr(owner, "defaults", {}).get("differentiable"))


def _move_scopes(rec: Recorder, scopes: ScopeRows, optimizer: Ints, of_closure: Bools, spent: Ints) -> None:
    """Let calls inside a closure have the step's parent; ``spent`` is time that was not the optimizer's."""
    kinds = [row.kind for row in rec.modules]
    for scope, (module, parent, start, stop, overhead, in_backward) in enumerate(
        np.stack(scopes, 1).tolist()
    ):
        if parent < 0 or optimizer[parent] != parent or kinds[module] == "optimizer":
            continue
        if kinds[module] in ("module", "compiled") or of_closure[scope]:
            outer = int(scopes.parent[parent])
            rec.scopes[scope] = (module, outer, start, stop, overhead, in_backward)
            spent[parent] += max(0, stop - start - overhead) if stop else 0
    for scope in np.flatnonzero(spent).tolist():
        module, parent, start, stop, overhead, in_backward = rec.scopes[scope]
        rec.scopes[scope] = (module, parent, start, stop, overhead + int(spent[scope]), in_backward)


def work_on_gradients(possible: Bools, writes: Bools, reads: GradientReads) -> Ints:
    """The operations, of those that are possible, that work on gradients; ``writes`` are those that write to one.

    >>> reads = GradientReads(np.array([0, 1, 3, 5]), np.array([-1, 0, -1, 1, 1]), np.array([1, 0, 0, 0, 0]) > 0,
    ...                       np.array([0, 0, 1, 0, 0]) > 0)
    >>> work_on_gradients(np.ones(3, dtype=bool), np.zeros(3, dtype=bool), reads).tolist()
    [0, 1, 2]
    """
    count = len(possible)
    reader = np.repeat(np.arange(count), np.diff(reads.start))
    if not (possible[reader] & reads.gradient).any():
        return np.zeros(0, dtype=np.int64)
    # on gradients, and on nothing but state; the last of each is for values that nothing made
    of_gradients, of_state = bytearray(count + 1), bytearray(count + 1)
    edges, makers = reads.start.tolist(), reads.maker.tolist()
    gradient, state, may, into = (
        column.tolist() for column in (reads.gradient, reads.state, possible, writes)
    )
    for node in range(count):
        rows = range(edges[node], edges[node + 1])
        of_state[node] = all(state[row] or of_state[makers[row]] for row in rows)
        if may[node] and any(gradient[row] or (not state[row] and of_gradients[makers[row]]) for row in rows):
            of_gradients[node] = into[node] or all(
                gradient[row] or state[row] or of_gradients[makers[row]] or of_state[makers[row]]
                for row in rows
            )
    return np.flatnonzero(np.frombuffer(of_gradients, dtype=np.uint8)[:-1])
