"""What the proof of edges and the poison add to ``check()``: against the same replays without them."""

from __future__ import annotations

import random
from functools import partial

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_most, for_information
from bench.timing import Samples, Side, interleave
from torch_vis.replay.check import _Oracle
from torch_vis.replay.replay import Replay

LIMIT = 2.0  # the target


def run(quick: bool) -> list[Row]:
    """BERT-base forward and backward; for information, tiny operations and a training loop that writes in place."""
    torch.set_num_threads(1)
    rounds = 1 if quick else 5
    bert, ids = models.bert(1, 64)
    rows = [_row("BERT-base fwd+bwd", compare(tv.trace(bert, ids, backward=True), rounds))]
    chain, inputs = models.loop(2_000)
    rows.append(for_information(_row("2,000 tiny adds", compare(tv.trace(chain, *inputs), rounds))))
    train = models.training_loop()
    rows.append(for_information(_row("20 steps of an LSTM", compare(tv.trace(train, 20), rounds))))
    return rows


def compare(trace: tv.Trace, rounds: int) -> Samples:
    """``check()``, and the replays that it consists of on plain memory, in turns."""
    sides = {"check": trace.check, "replays": partial(replays, trace)}
    return interleave({name: Side(run) for name, run in sides.items()}, rounds=rounds)


def replays(trace: tv.Trace) -> None:
    """Replay in order, pruned and in two random orders, and compare results: a check that trusts the edges."""
    assert trace.kept is not None
    oracle = _Oracle(trace.graph, trace.kept, lambda _: None)
    replay = Replay(trace.graph, trace.kept, oracle.plan)
    replay.run(range(len(trace.graph)), states=oracle.states)
    assert not oracle._differing(replay, oracle.everything)
    del replay
    oracle.pruned()
    for turn in range(2):
        oracle.shuffled(random.Random(turn))


def _row(what: str, samples: Samples) -> Row:
    return at_most(
        f"check(), {what}",
        f"{samples.median('check'):.2f} s",
        f"the replays alone: {samples.median('replays'):.2f} s",
        samples.ratio("check", "replays"),
        LIMIT,
        samples.best_ratio("check", "replays"),
    )
