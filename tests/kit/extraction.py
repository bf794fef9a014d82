"""An extraction that is killed at any moment; samples say their own number, so that a lost or doubled one shows."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torch_vis as tv

SAMPLES = 600


def model() -> torch.nn.Module:
    """A model whose first layer says which sample it was given."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    with torch.no_grad():
        net[0].weight[0] = torch.tensor([1.0, 0.0])
        net[0].bias[0] = 0.0
    return net


def samples() -> torch.Tensor:
    """Each with its number as the first feature."""
    numbers = torch.arange(SAMPLES, dtype=torch.float32)
    return torch.stack((numbers, torch.cos(numbers)), dim=1)


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Takes a moment for each sample, so that there is something to kill."""

    def __init__(self) -> None:
        self.rows = samples()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.0004)
        return self.rows[index]


def loader(**options: Any) -> torch.utils.data.DataLoader[torch.Tensor]:
    """Batches of seven, the last one smaller."""
    return torch.utils.data.DataLoader(Slow(), batch_size=7, **options)


def extract(folder: str | Path, **options: Any) -> Any:
    """The extraction itself: many small shards."""
    return tv.extract(model(), loader(), keep=["0", "2"], to=folder, shard_bytes=1500, **options)


def _life(folder: str, begins: Any, largest: int | None) -> None:
    """One process that extracts; ``largest`` is how many bytes a file may have, as on a disk that is full."""
    torch.set_num_threads(1)
    if largest is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    begins.set()
    try:
        extract(folder)
    except tv.errors.FileError as error:
        Path(folder, "said.txt").write_text(str(error))
        raise


def born(folder: Path, largest: int | None = None) -> multiprocessing.process.BaseProcess:
    """A process that has begun to extract."""
    context = multiprocessing.get_context("fork")
    begins = context.Event()
    child = context.Process(target=_life, args=(str(folder), begins, largest))
    child.start()
    begins.wait(60)
    return child


def killed_until_done(folder: Path, kills: int, seed: int) -> list[int]:
    """Kill it so often at random moments, start it each time again, and let the last one come to its end.

    Gives how many samples were on the disk after each kill.
    """
    draw = random.Random(seed)
    written = []
    for number in range(kills):
        child = born(folder)
        # moments from before the first shard to after the last
        time.sleep(draw.random() * 0.6 * (number + 1) / kills)
        child.kill()
        child.join()
        written.append(readable(folder))
    child = born(folder)
    child.join()
    assert child.exitcode == 0
    return written


def readable(folder: Path) -> int:
    """What is written can be read, and is a beginning of all samples without a gap; gives how many there are."""
    try:
        acts = tv.open_activations(folder)
    except tv.errors.FileError:
        return 0
    if "0" not in acts:
        return 0
    numbers = acts["0"][:, 0].round().int().numpy()
    assert np.array_equal(numbers, np.arange(len(numbers))), "samples are lost or doubled"
    return len(numbers)
