"""What the first screen of a page promises: models of the zoo, timm and transformers in three sizes of windows.

Forward alone and, where there is a gradient, forward and backward. ``python -m bench.first_screen NAME ...`` prints the
breaches of some models; ``--quick`` looks at a third of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import torch_vis as tv
from bench.row import Row, within
from tests.kit.browser import browser, missing
from tests.kit.first_screen import SIZES, breaches, look, shows_less
from tests.zoo import cases, seed_everything
from tools.corpus.child import load_group, runs_backward

TIMM = (
    "resnet10t convnext_atto vit_tiny_patch16_224 swin_s3_tiny_224 mobilenetv3_small_050 densenet121 regnety_002 "
    "mixer_b16_224 deit_tiny_patch16_224 maxvit_pico_rw_256 poolformer_s12 inception_v3 vgg11 pvt_v2_b0 ghostnet_050"
).split()
HF = (
    "albert bart clip deberta-v2 distilbert electra falcon gemma2 gpt_neox mistral opt phi3 qwen2 roberta segformer "
    "vit wav2vec2 xlnet mamba2 sam"
).split()

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def run(quick: bool) -> list[Row]:
    """How many pages keep the promise, and each breach that was found."""
    if missing():
        print(f"  not measured: {missing()}")
        return []
    pages, broken, told = 0, 0, []
    for name, found in results(lambda number: not quick or number % 3 == 0):
        pages += 1
        broken += bool(found)
        told += [f"  {name}: {text}" for text in found]
    print("\n".join(told))
    return [within(f"first screens that do not keep the promise, of {pages}", broken, 0.5, "pages")]


def results(chosen: Callable[[int], bool]) -> Iterator[tuple[str, list[str]]]:
    """For every page its name and what it does not keep."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        for number, (name, make, has_gradient) in enumerate(models()):
            if not chosen(number):
                continue
            for backward in (False, True) if has_gradient() else (False,):
                path = Path(folder) / "run.html"
                model, args, kwargs = make()
                with torch.enable_grad():
                    tv.trace(model, *args, kwargs=kwargs, backward=backward, hold=False).save(path)
                yield f"{name}{' with backward' if backward else ''}", check(driver, path)


def check(driver: Any, path: Path) -> list[str]:
    """What a page does not keep, with the width of the window."""
    screens = [look(driver, path, size) for size in SIZES]
    found = [f"{w} px: {text}" for (w, _), screen in zip(SIZES, screens) for text in breaches(screen)]
    return found + [text for pair in pairwise(screens) for text in shows_less(*pair)]


def models() -> Iterator[tuple[str, Callable[[], Made], Callable[[], bool]]]:
    """Names, builders, and whether there is a gradient."""
    for case in cases("real"):
        yield case.name, case.make, lambda case=case: case.backward
    for group, names in (("timm", TIMM), ("hf", HF)):
        loaded = load_group(group)
        loaded.prepare()
        for name in names:
            seed_everything()
            maker = loaded.makers(name)[0]

            def made(maker: Any = maker) -> Made:
                seed_everything()
                subject = maker()
                return subject.call, subject.args, subject.kwargs

            yield f"{group} {name}", made, lambda maker=maker: runs_backward(maker)


def main(names: list[str]) -> int:
    """Print what the named models do not keep."""
    wanted = {number for number, (name, _, _) in enumerate(models()) if name.split()[-1] in names}
    broken = 0
    for name, found in results(wanted.__contains__):
        print(name, "\n  ".join(["", *found]) if found else "keeps it", flush=True)
        broken += bool(found)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
