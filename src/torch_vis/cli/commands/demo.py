"""Trace a small vision model and a training step of a small transformer, prove both, and open a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_vis.cli import targets
from torch_vis.cli.command_table import PROGRAM
from torch_vis.cli.output import Output, in_flags
from torch_vis.cli.parser import Parser

if TYPE_CHECKING:
    from torch_vis._trace import Trace

EXAMPLES = (
    ("into the folder torch-vis-demo, and a page in the browser where there is one", "torch-vis demo"),
    ("somewhere else, and no browser", "torch-vis demo --folder tour --no-browser"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.add_argument(
        "--folder", default="torch-vis-demo", help="where the files go (default: torch-vis-demo)"
    )
    parser.add_argument("--no-browser", action="store_true", help="write the pages, but open none")


def run(options: Any, out: Output) -> int:
    """Trace, prove, save, say how to go on and where the pages are, and open the last."""
    from torch_vis.views.page.show import open_in_browser

    os.makedirs(options.folder, exist_ok=True)
    runs: list[dict[str, Any]] = []
    parts: list[str] = []
    for name, traced in (("vision", _vision), ("transformer", _transformer)):
        out.say(f"tracing a {name} model …" if name == "vision" else f"tracing a {name} …")
        trace = traced()
        proof = str(trace.check())
        paths = [
            os.path.join(options.folder, f"{name}{ending}") for ending in (".tvz", ".html", ".svg", ".md")
        ]
        targets.write(trace, paths, None, out)
        runs.append({**targets.facts(trace), "proof": proof, "files": paths})
        table = in_flags(trace.table()).replace("--width", f"{PROGRAM} summary {paths[0]} --width")
        parts.append(f"{table}\n\nproof: {proof}")
    pages = [Path(row["files"][1]).resolve() for row in runs]
    parts.append(
        f"go on with\n  {PROGRAM} explore {runs[-1]['files'][0]}\n  {PROGRAM} summary {runs[-1]['files'][0]}"
    )
    parts.append("\n".join(["open in a browser", *(f"  {page.as_uri()}" for page in pages)]))
    opened = not options.no_browser and not out.as_json and open_in_browser(pages[-1])
    out.give({"runs": runs, "pages": list(map(str, pages)), "opened": opened}, "\n\n".join(parts))
    return 0


def _vision() -> Trace:
    """One forward and backward pass of a residual network on two small images."""
    import torch
    from torch import nn

    import torch_vis as tv

    class Block(nn.Module):
        """Two convolutions, and what went in added to what comes out."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.relu(self.norm1(self.conv1(x)))
            return self.relu(x + self.norm2(self.conv2(inner)))

    class SmallResNet(nn.Module):
        """Convolutions, two stages of two blocks, and ten classes."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
            )
            self.stage1 = nn.Sequential(Block(16), Block(16))
            self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
            self.stage2 = nn.Sequential(Block(32), Block(32))
            self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = self.stage2(self.down(self.stage1(self.stem(images))))
            return self.head(self.pool(x).flatten(1))

    torch.manual_seed(0)
    labels = torch.tensor([1, 2])
    return tv.trace(
        SmallResNet(),
        torch.randn(2, 3, 32, 32),
        loss=lambda scores: nn.functional.cross_entropy(scores, labels),
    )


def _transformer() -> Trace:
    """One training step of a transformer: forward, backward and the optimizer."""
    import torch
    from torch import nn

    import torch_vis as tv

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(100, 64),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(64, 100),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (2, 16))
    with tv.record(model) as trace:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
    return trace
