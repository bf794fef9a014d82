"""Trace a vision model and a transformer, forward and backward, prove both graphs, and leave pages to open.

python examples/demo.py [--out FOLDER] [--no-browser]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torch_vis as tv
from torch_vis.views.page.show import open_in_browser


def resnet() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """ResNet-50 in training mode, so that its running statistics change, on two small images."""
    from torchvision.models import resnet50

    return resnet50(weights=None).train(), (torch.randn(2, 3, 96, 96),)


def bert() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """BERT-base with random weights, dropout on, on 64 tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig()
    return BertModel(config).train(), (torch.randint(0, config.vocab_size, (1, 64)),)


def show(
    name: str, make: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]], folder: Path
) -> Path:
    """Trace one model, print its table, check it and write its files; gives its page."""
    torch.manual_seed(0)
    model, inputs = make()
    trace = tv.trace(model, *inputs, backward=True)
    print(trace, end="\n\n")
    start = time.perf_counter()
    print(f"check: {trace.check()} ({time.perf_counter() - start:.1f} s)")
    for ending in ("tvz", "json", "html"):
        trace.save(folder / f"{name}.{ending}")
    (folder / f"{name}.txt").write_text(trace.table(depth=None, width=160) + "\n", encoding="utf-8")
    print(f"written: {folder / name}.html, .tvz, .json and .txt\n")
    return (folder / f"{name}.html").resolve()


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="Trace ResNet-50 and BERT-base, check both, write files.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the files go (default: out)")
    parser.add_argument("--no-browser", action="store_true", help="write the pages, but open none")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pages = [show("resnet50", resnet, options.out), show("bert", bert, options.out)]
    opened = not options.no_browser and open_in_browser(pages[-1])
    print(
        "their pages (the last one is open in the browser):" if opened else "open their pages in a browser:"
    )
    for page in pages:
        print(f"  {page.as_uri()}")


if __name__ == "__main__":
    main()
