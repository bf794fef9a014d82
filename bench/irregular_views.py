"""Programs that write one buffer through irregular views: seconds to trace them, and how these grow."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from bench import child
from bench.row import Row, at_most, within
from bench.timing import Side, cpu, sample

FEW, MANY = 800, 1_600
# the targets: seconds for MANY operations, and MANY operations beside FEW; twice as many take twice as long
SECONDS, GROWTH = 1.0, 2.5
Program = Callable[[torch.Tensor], torch.Tensor]


def window(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Windows of 16 that overlap, and every eleventh element from each start on."""
    block = torch.zeros(20_000)
    for turn in range(turns // 5):
        block.unfold(0, 16, 8)[turn].add_(1)
        block.as_strided((100,), (11,), turn).add_(1)
    return block


def perm(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Slices across every dimension of a tensor whose dimensions are permuted."""
    block = torch.zeros(64, 64, 8)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    for turn in range(turns // 4):
        view = block.permute(orders[turn % 6])
        view.select(0, turn % view.shape[0]).narrow(0, turn % 4, 4).add_(1)
    return block


def strided(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Rows and columns by steps that do not divide each other."""
    block = torch.zeros(100, 100)
    for turn in range(turns // 3):
        block[turn % 7 :: turn % 5 + 2, turn % 3 :: turn % 11 + 1].add_(1)
    return block


def diag(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Diagonals of a matrix."""
    block = torch.zeros(200, 200)
    for turn in range(turns // 2):
        block.diagonal(turn % 199 - 99).add_(1)
    return block


def lattice(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Lattices by ``as_strided`` that lie across each other, read and written in turns."""
    block = torch.zeros(30_000)
    for turn in range(turns // 5):
        source = block.as_strided((9, 50), (5 + turn % 7, 97 + turn % 13), turn % 100)
        block.as_strided((9, 50), (3 + turn % 5, 101 + turn % 17), turn % 300).copy_(source)
        x = x + source.sum()
    return block + x


def columns(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Interleaved columns, and flat runs that begin anywhere."""
    block = torch.zeros(150, 150)
    flat = block.view(-1)
    for turn in range(turns // 5):
        block[:, turn % 6 :: 6].add_(1)
        flat[turn * 37 % 20_000 :][:2_000].mul_(2)
    return block


def tiles(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Tiles at odd places, transposed and laid over others."""
    block = torch.zeros(256, 256)
    for turn in range(turns // 6):
        row, column = turn * 29 % 200, turn * 53 % 200
        source = block[row : row + 17, column : column + 23]
        block[column : column + 23, row : row + 17].copy_(source.t())
    return block


def shuffled(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Random slices of a tensor of five dimensions in random orders."""
    block = torch.zeros(6, 7, 8, 9, 10)
    draw = random.Random(0)
    for _ in range(turns // 4):
        view = block.permute(draw.sample(range(5), 5))
        view.select(draw.randrange(5), draw.randrange(6))[:: draw.randrange(1, 4)].add_(1)
    return block


def complex_parts(x: torch.Tensor, turns: int) -> torch.Tensor:
    """Real and imaginary parts of a complex tensor by rows, and its diagonals as pairs."""
    block = torch.zeros(96, 96, dtype=torch.complex64)
    pairs = torch.view_as_real(block)
    for turn in range(turns // 5):
        pairs[..., turn % 2][turn % 90 :: turn % 4 + 1].add_(1)
        block.diagonal(turn % 95 - 47).mul_(2)
    return block


PATTERNS = (window, perm, strided, diag, lattice, columns, tiles, shuffled, complex_parts)


def program(pattern: Callable[[torch.Tensor, int], torch.Tensor], operations: int) -> Program:
    """The pattern as a function of one tensor that runs about so many operations."""
    return lambda x: pattern(x, operations)


def run(quick: bool) -> list[Row]:
    """Seconds of a trace of each pattern, and how much longer twice as many operations take."""
    rows = []
    for pattern in PATTERNS:
        measured = child.call(
            "bench.irregular_views:measure", name=pattern.__name__, rounds=1 if quick else 3
        )
        few, many = min(measured["few"]), min(measured["many"])
        rows.append(within(f"{pattern.__name__}: trace of {measured['operations']:,}", many, SECONDS, "s"))
        rows.append(
            at_most(f"{pattern.__name__}: growth", f"{many:.2f} s", f"{few:.2f} s", many / few, GROWTH)
        )
    return rows


def measure(name: str, rounds: int) -> dict[str, Any]:
    """In a process of its own: seconds of traces of few and of many operations, in turns."""
    import torch_vis as tv

    torch.set_num_threads(1)
    pattern = globals()[name]
    x = torch.ones(1)
    few, many = (Side(lambda n=n: tv.trace(program(pattern, n), x)) for n in (FEW, MANY))  # type: ignore[misc]
    measured: dict[str, Any] = {"operations": len(many.run().graph), "few": [], "many": []}
    for _ in range(rounds):
        measured["few"].append(sample(few, cpu))
        measured["many"].append(sample(many, cpu))
    return measured
