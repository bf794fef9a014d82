"""Graphs from Dynamo: a plain network, one with a branch, one with a loop, and the other captures beside it.

python examples/dynamo_basics.py [simple | control | loops | compare]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import torch_vis as tv


class SimpleCNN(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(32 * 8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.head(x.flatten(1))


class Branching(nn.Module):
    """Takes one way or the other, as the data says: symbolic tracing cannot go on, Dynamo breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        if x.mean() > 0:
            x = self.up(x)
        else:
            x = self.down(x)
        return torch.relu(x)


class Looping(nn.Module):
    """One layer, called as often as an argument says: Dynamo unrolls it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, steps: int = 4) -> Tensor:
        for _ in range(steps):
            x = torch.tanh(self.layer(x))
        return x


def simple() -> None:
    """One graph: its nodes with their shapes, its operations, its memory over time."""
    extractor = tv.trace_model_with_dynamo(SimpleCNN(), torch.randn(4, 3, 32, 32))
    print(extractor)
    print()
    graph = extractor.graph_modules[0].graph
    for node in graph.nodes:
        if node.op.startswith("call_") and "tensor_meta" in node.meta:
            found = node.meta["tensor_meta"]
            print(f"  {node.name:16} {tuple(found.shape)!s:20} {found.dtype}")
    peak = max(extractor.memory_timeline(), key=lambda point: point.size_bytes or 0)
    print(f"\n  most memory is held at {peak.name}: {peak.size_bytes:,} bytes")
    print(f"  FLOPs: {sum(part.flops or 0 for part in extractor.descriptors()):,}")


def control() -> None:
    """A branch that depends on data: two partitions, and the line that broke them apart."""
    extractor = tv.trace_model_with_dynamo(Branching(), torch.randn(2, 8))
    for number, module in enumerate(extractor.graph_modules, 1):
        calls = [node.name for node in module.graph.nodes if node.op.startswith("call_")]
        print(f"Graph Partition {number}: {', '.join(calls)}")
    print()
    print(extractor.breaks)


def loops() -> None:
    """A loop of Python: one graph, as long as the loop ran."""
    for steps in (2, 5):
        extractor = tv.trace_model_with_dynamo(Looping(), (torch.randn(2, 8), steps))
        print(f"{steps} steps: {extractor.operations}")


def compare() -> None:
    """The same models through every capture: nodes, breaks and time, or why it cannot be captured so."""
    models: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "SimpleCNN": (SimpleCNN, torch.randn(4, 3, 32, 32)),
        "Branching": (Branching, torch.randn(2, 8)),
        "Looping": (Looping, torch.randn(2, 8)),
    }
    print(f"{'model':12} {'capture':8} {'operations':>10} {'breaks':>7} {'seconds':>8}")
    for name, (make, x) in models.items():
        for via in ("eager", "fx", "export", "dynamo", "aot"):
            started = time.perf_counter()
            try:
                t = tv.trace(make(), x, via=via)
            except tv.errors.CaptureFailed as failure:
                print(f"{name:12} {via:8} cannot: {str(failure).split(': ', 1)[1][:70]}")
                continue
            took = time.perf_counter() - started
            breaks = len(t.breaks) if via in ("dynamo", "aot") else "–"
            print(f"{name:12} {via:8} {len(t.graph):>10} {breaks:>7} {took:>8.2f}")


EXAMPLES = {"simple": simple, "control": control, "loops": loops, "compare": compare}


def main() -> None:
    """Run the examples that are named, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="example", help=", ".join(EXAMPLES))
    names = parser.parse_args().names
    for name in names:
        if name not in EXAMPLES:
            parser.error(f"no example {name!r}; there are {', '.join(EXAMPLES)}")
    torch.manual_seed(0)
    for name in names or EXAMPLES:
        print(f"── {name} ──\n")
        EXAMPLES[name]()
        print()


if __name__ == "__main__":
    main()
