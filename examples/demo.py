"""Trace a vision model and a transformer, forward and backward, prove both graphs, and leave files to open.

python examples/demo.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torch_vis as tv


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
) -> None:
    """Trace one model, print its table, check it and write its files."""
    torch.manual_seed(0)
    model, inputs = make()
    trace = tv.trace(model, *inputs, backward=True)
    print(trace, end="\n\n")
    start = time.perf_counter()
    print(f"check: {trace.check()} ({time.perf_counter() - start:.1f} s)")
    for ending in ("tvz", "json"):
        trace.save(folder / f"{name}.{ending}")
    (folder / f"{name}.txt").write_text(trace.table(depth=None, width=160) + "\n", encoding="utf-8")
    print(f"written: {folder / name}.tvz, .json and .txt\n")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="Trace ResNet-50 and BERT-base, check both, write files.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the files go (default: out)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    show("resnet50", resnet, folder)
    show("bert", bert, folder)
    print(f"open again with: python -c \"import torch_vis as tv; print(tv.load('{folder / 'bert.tvz'}'))\"")


if __name__ == "__main__":
    main()
