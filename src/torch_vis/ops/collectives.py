"""Collectives and messages between ranks: which arguments they send and receive, in which group, and with whom.

The schemas of ``c10d::*`` do not say that they write, and what is written is there only once somebody has waited for
it. So one table says it for all of them; the recorder, the proof of edges, the costs and the reports read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph.call import Call, Special
from torch_vis.graph.metrics import Column
from torch_vis.graph.run import Run
from torch_vis.graph.schema import RankGroup

# the node that stands for a wait that is a method and no operator
WAIT = "c10d::wait"
WAIT_TENSOR = "_c10d_functional::wait_tensor"
# operators of these talk to other processes, which would have to join in
NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})
# bookkeeping in these namespaces, which talks to nobody
LOCAL = frozenset(
    {
        "c10d::check_for_nan",
        "_c10d_functional::_wrap_tensor_autograd",
        "_dtensor::mesh_get_process_group",
        "symm_mem::memset32_",
    }
)


class Collective(NamedTuple):
    """One operator: its kind, and the positions of its arguments; None for what it does not have."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, recv, barrier."""
    group: int | None
    given: int | None
    """The tensors whose contents are sent."""
    filled: int | str | None = None
    """The tensors that are written: a position, or a keyword; None where what was received is returned."""
    peer: int | None = None
    """The rank, in its group, that all others send to or receive from."""
    tag: int | None = None
    op: int | None = None
    """How numbers are added up."""
    splits: int | None = None
    """How many rows go to each rank."""
    waits: bool = False
    """Whether what was received is there when it returns, so that nobody has to wait for it."""


def _c10d() -> dict[str, Collective]:
    gather = Collective("all_gather", 2, 1, 0)
    scatter = Collective("reduce_scatter", 2, 1, 0, op=3)
    reduce = Collective("all_reduce", 1, 0, 0, op=2)
    return {
        "allreduce_": reduce,
        "allreduce_coalesced_": reduce,
        "broadcast_": Collective("broadcast", 1, 0, 0, peer=2),
        "reduce_": Collective("reduce", 1, 0, 0, peer=3, op=2),
        "allgather_": gather,
        "_allgather_base_": gather,
        "allgather_coalesced_": gather,
        "allgather_into_tensor_coalesced_": gather,
        "reduce_scatter_": scatter,
        "_reduce_scatter_base_": scatter,
        "reduce_scatter_tensor_coalesced_": scatter,
        "gather_": Collective("gather", 2, 1, 0, peer=3),
        "scatter_": Collective("scatter", 2, 1, 0, peer=3),
        "alltoall_": Collective("all_to_all", 2, 1, 0),
        "alltoall_base_": Collective("all_to_all", 2, 1, 0, splits=4),
        "send": Collective("send", 1, 0, peer=2, tag=3),
        "recv_": Collective("recv", 1, None, 0, peer=2, tag=3),
        "recv_any_source_": Collective("recv", 1, None, 0, tag=2),
        "barrier": Collective("barrier", 1, None),
        "monitored_barrier_": Collective("barrier", 1, None, waits=True),
    }


def _functional() -> dict[str, Collective]:
    reduce = Collective("all_reduce", 2, 0, op=1)
    gather = Collective("all_gather", 2, 0)
    scatter = Collective("reduce_scatter", 3, 0, op=1)
    return {
        "all_reduce": reduce,
        "all_reduce_coalesced": reduce,
        "all_reduce_": reduce._replace(filled=0),
        "all_reduce_coalesced_": reduce._replace(filled=0),
        "all_gather_into_tensor": gather,
        "all_gather_into_tensor_coalesced": gather,
        "all_gather_into_tensor_out": gather._replace(filled="out"),
        "reduce_scatter_tensor": scatter,
        "reduce_scatter_tensor_coalesced": scatter,
        "reduce_scatter_tensor_out": scatter._replace(filled="out"),
        "all_to_all_single": Collective("all_to_all", 3, 0, splits=2),
        "broadcast": Collective("broadcast", 2, 0, peer=1),
        "broadcast_": Collective("broadcast", 2, 0, 0, peer=1),
        "isend": Collective("send", 3, 0, peer=1, tag=2),
        "irecv": Collective("recv", 3, None, 0, peer=1, tag=2),
    }


TABLE: dict[str, Collective] = {
    **{f"c10d::{name}": row for name, row in _c10d().items()},
    **{f"_c10d_functional::{name}": row for name, row in _functional().items()},
    **{
        f"_c10d_functional_autograd::{name}": _functional()[name]
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    },
    "_dtensor::shard_dim_alltoall": Collective("all_to_all", 3, 0, waits=True),
}
# what talks to other ranks in a way that no row says
UNKNOWN = Collective("other", None, None, waits=True)


def collective(op: str) -> Collective | None:
    """What an operator by its stored name does, if it talks to other ranks.

    >>> collective("c10d::allreduce_").kind, collective("aten::add.Tensor")
    ('all_reduce', None)
    """
    name = op.partition(".")[0]
    row = TABLE.get(name)
    if row is None and name.partition("::")[0] in NAMESPACES and name not in LOCAL and not is_wait(op):
        return UNKNOWN
    return row


def is_wait(op: str) -> bool:
    """Whether an operator does nothing but wait until what was received is there."""
    return op.partition(".")[0] in (WAIT, WAIT_TENSOR)


class Effects(NamedTuple):
    """What a call does with its arguments, by position or keyword."""

    writes: tuple[int | str, ...]
    overwrites: tuple[int | str, ...]
    """Of these, those that it does not read."""
    unread: tuple[int, ...]
    """Arguments that are neither read nor written."""


def effects(row: Collective, position: int | None, root: int | None) -> Effects:
    """What a call does on the rank at a position of its group; ``root`` is the rank that it names there.

    >>> broadcast = TABLE["c10d::broadcast_"]
    >>> effects(broadcast, 0, 0).writes, effects(broadcast, 1, 0).writes
    ((), (0,))
    """
    if row.kind == "barrier":
        return Effects((), (), (0,))
    if row.filled is None:
        return Effects((), (), ())
    if row.kind == "broadcast":
        if position is not None and position == root:
            return Effects((), (), ())
        return Effects((row.filled,), (row.filled,), ())
    overwrites = () if row.filled == row.given else (row.filled,)
    return Effects((row.filled,), overwrites, ())


def root_of(row: Collective, args: tuple[Any, ...]) -> int | None:
    """The rank, in its group, that a call names."""
    root = args[row.peer] if row.peer is not None and row.peer < len(args) else None
    return root if type(root) is int else None


def group_of(call: Call, groups: tuple[RankGroup, ...]) -> RankGroup | None:
    """The group of ranks that a recorded call is about."""
    names = [item.text for item in call.args if isinstance(item, Special) and item.kind == "group"]
    return next((group for group in groups if names and group.name == names[0]), None)


def reduction(call: Call) -> str | None:
    """How a recorded call adds numbers up: sum, avg, max …; None where it does not, or it is not known.

    >>> reduction(Call("c10d::allreduce_", ((), Special("group", "dp"), Special("reduce_op", "sum")), ()))
    'sum'
    """
    row = collective(call.op)
    if row is None or row.op is None or row.op >= len(call.args):
        return None
    item = call.args[row.op]
    text = item.text if isinstance(item, Special) else item
    return text if isinstance(text, str) and text != "?" else None


# ---------------------------------------------------------------- waits


def has_timed_waits(run: Run) -> bool:
    """Whether the times of waits in a run are those in which its program stood still.

    A run by shapes has none unless they were predicted, and a wait on a device returns at once: the device stands
    still later.
    """
    predicted = bool(run.meta.get("predicted"))
    timed = {"time_ns", "start_ns"} <= set(run.metrics) and (predicted or not run.meta.get("fake"))
    return timed and (predicted or all(str(device).startswith("cpu") for device in run.graph.devices))


def is_unseen_wait(run: Run, node: int) -> bool:
    """Whether code in C++ did the waiting, unseen, at some time before the node that stands for it."""
    return bool(run.graph.node_site[node] < 0 and not run.metrics["time_ns"].values[node])


def waited(run: Run) -> Column | None:
    """For each operation how long the program stood in it waiting for other ranks; None of a run that never does.

    What computes waits for nobody, and has 0; a wait that nobody saw is not known.

    >>> import torch, torch_vis as tv
    >>> waited(tv.trace(torch.nn.ReLU(), torch.ones(2)))
    """
    graph = run.graph
    if not len(graph.wait_node) or not has_timed_waits(run):
        return None
    times = run.metrics["time_ns"].values
    values = np.zeros(len(graph), dtype=np.int64)
    known = np.ones(len(graph), dtype=bool)
    for node in graph.wait_node.tolist():
        values[node] = times[node]
        known[node] = not is_unseen_wait(run, node)
    for node in graph.comm_node.tolist():
        row = collective(graph.calls[graph.node_call[node]].op)
        if row is not None and row.waits:
            values[node] = times[node]
    return Column("waited_ns", values, known=known)


# ---------------------------------------------------------------- bytes


class Traffic(NamedTuple):
    """The bytes of one call on one rank: those of the whole message, and those that this rank sends."""

    bytes: int
    sent: float


def traffic(
    kind: str,
    given: int,
    filled: int,
    ranks: int,
    *,
    position: int | None = None,
    root: int | None = None,
    kept: int | None = None,
) -> Traffic | None:
    """The bytes of a call that gives and fills so many bytes on this rank, as a ring of ranks would send them.

    =================  ==================================  ======================
    kind               the message                         sent by one of n ranks
    =================  ==================================  ======================
    all_reduce         the tensor                          2 (n - 1) / n of it
    all_gather         what all ranks give together        (n - 1) / n of it
    reduce_scatter     what one rank gives                 (n - 1) / n of it
    all_to_all         what one rank gives                 all but its own part
    broadcast, reduce  the tensor                          (n - 1) / n of it
    gather             what one rank gives                 all of it, but the root
    scatter            what one rank gets                  the root all but its own
    send, recv         the tensor                          all of it; nothing
    barrier            nothing                             nothing
    =================  ==================================  ======================

    ``kept`` are the bytes of an all_to_all that stay on this rank, where they are known. None where nothing is known.

    >>> traffic("all_reduce", 1000, 1000, 4), traffic("all_gather", 250, 1000, 4)
    (Traffic(bytes=1000, sent=1500.0), Traffic(bytes=1000, sent=750.0))
    """
    share = (ranks - 1) / ranks if ranks else 0.0
    if kind == "all_reduce":
        return Traffic(given, 2 * share * given)
    if kind == "all_gather":
        return Traffic(given * ranks, share * given * ranks)
    if kind == "reduce_scatter":
        return Traffic(given, share * given)
    if kind == "all_to_all":
        return Traffic(given, given - kept if kept is not None else share * given)
    if kind in ("broadcast", "reduce"):
        return Traffic(max(given, filled), share * max(given, filled))
    if kind == "gather":
        return Traffic(given, 0.0 if position == root else float(given))
    if kind == "scatter":
        return Traffic(filled, float((ranks - 1) * filled) if position == root else 0.0)
    if kind == "send":
        return Traffic(given, float(given))
    if kind == "recv":
        return Traffic(filled, 0.0)
    return Traffic(0, 0.0) if kind == "barrier" else None
