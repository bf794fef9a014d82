"""What a closure runs inside ``optimizer.step()``: a forward and a backward, which are no work of the optimizer's.

LBFGS calls its closure several times in a step, and Lightning runs every training step as one. The optimizer computes
without recording gradients and its closure with it, so that tells the two apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.sorted_columns import table
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.graph.types import Bools, Ints


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
