"""Every zoo case traced once for a whole session: what views, exporters and analyses are tested on."""

from __future__ import annotations

from functools import cache

import torch_vis as tv
from tests.zoo import ZOO, close_process_group

NAMES = tuple(ZOO)


@cache
def traced(name: str) -> tv.Trace:
    """The trace of a case, forward and, where the case has one, backward; it holds no tensors."""
    case = ZOO[name]
    model, args, kwargs = case.make()
    try:
        trace = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, hold=False)
    finally:
        close_process_group()
    trace.release()
    return trace
