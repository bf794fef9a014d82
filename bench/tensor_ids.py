"""Connected tensor tracing: a loop that frees and re-creates temporaries, at 10,000 to 1,000,000 operations."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

import torch_vis as tv
from bench import child, process
from bench.row import Row, at_most, for_information
from bench.timing import Side, cpu, interleave, sample

SMALL = 10_000
TIMES = 1.5  # what a large run may take per operation, beside a small one; its 2.6 GB of dictionaries fit no cache


def run(quick: bool) -> list[Row]:
    """Time per operation of recording and of the sequence, against the smallest; and what naming calls adds."""
    sizes = [SMALL, 40_000] if quick else [SMALL, 100_000, 1_000_000]
    found = {
        size: child.call("bench.tensor_ids:measure", operations=size, rounds=_rounds(size)) for size in sizes
    }
    rows = []
    for size in sizes[1:]:
        for what in ("record", "sequence"):
            rows.append(_row(f"{what}, {size:,} temporaries", found[size][what], found[SMALL][what], size))
    held = found[sizes[-1]]
    rows[-1] = rows[-1]._replace(
        peer=f"{rows[-1].peer}; {held['bytes'] / sizes[-1]:,.0f} bytes an operation held"
    )
    rows.append(for_information(_naming(2_000 if quick else 10_000, 5 if quick else 15)))
    return rows


def _rounds(size: int) -> int:
    return max(1, min(7, 300_000 // size))


def _row(what: str, ours: list[float], peer: list[float], size: int) -> Row:
    large, small = median(ours) / size, median(peer) / SMALL
    best = min(ours) / size / (min(peer) / SMALL)
    return at_most(
        what,
        f"{large * 1e6:.1f} µs each",
        f"{SMALL:,}: {small * 1e6:.1f} µs each",
        large / small,
        TIMES,
        best,
    )


def block(operations: int) -> Any:
    """The loop: every other operation makes a temporary that dies at once, at an address that is used again."""
    x, total = torch.ones(4), torch.zeros(4)
    with tv.trace_tensor_ids(input_tensors={"x": x}, keep=False) as tracer:
        for _ in range(operations // 2):
            part = x + 1
            total = total + part
    return tracer


def measure(operations: int, rounds: int) -> dict[str, Any]:
    """In a process of its own: seconds to record and to list, bytes held; the connections of the list are checked."""
    torch.set_num_threads(1)
    block(100).get_operation_sequence()
    found: dict[str, Any] = {"record": [], "sequence": []}
    start = process.held()
    for _ in range(rounds):
        kept: list[Any] = []
        found["record"].append(sample(Side(lambda: kept.append(block(operations))), cpu))  # noqa: B023
        tracer = kept.pop()
        found["sequence"].append(sample(Side(lambda: kept.append(tracer.get_operation_sequence())), cpu))  # noqa: B023
        found["bytes"] = process.held() - start
        check(kept.pop(), operations)
    return found


def check(sequence: list[dict[str, Any]], operations: int) -> None:
    """Raise unless every operation reads exactly what the loop reads, by ids and by parents."""
    made: dict[str, int] = {}
    assert len(sequence) == operations
    for number, operation in enumerate(sequence):
        expected = [] if number % 2 == 0 else [number - 2, number - 1] if number > 1 else [0]
        by_id = sorted(made[tensor] for tensor, _ in operation["inputs"] if tensor in made)
        assert by_id == expected == operation["parents"], (number, by_id, operation["parents"])
        for tensor, _ in operation["outputs"]:
            assert tensor not in made, tensor
            made[tensor] = number


def _naming(operations: int, rounds: int) -> Row:
    """Recording with calls named, beside recording without."""
    torch.set_num_threads(1)

    def loop() -> None:
        x, total = torch.ones(4), torch.zeros(4)
        for _ in range(operations // 2):
            total = total + (x + 1)

    def unnamed() -> Any:
        with tv.record(hold=False) as t:
            loop()
        return t

    samples = interleave(
        {"plain": loop, "named": lambda: block(operations), "unnamed": unnamed}, rounds=rounds
    )
    ours, peer = samples.added("named") / operations, samples.added("unnamed") / operations
    return at_most(
        "time added with calls named",
        f"{ours * 1e6:.1f} µs each",
        f"without names: {peer * 1e6:.1f} µs each",
        ours / peer,
        3,
        samples.best_added("named") / samples.best_added("unnamed"),
    )
