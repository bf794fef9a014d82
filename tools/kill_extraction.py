"""``python tools/kill_extraction.py [KILLS] [SEED]``: kill an extraction at random moments, resume it, count samples.

Each round starts in an empty folder and is killed five times before it may end; then every sample has to be there once,
with the numbers of a run that nobody killed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import torch_vis as tv
from tests.kit import extraction

EACH = 5


def main() -> None:
    """Kill, resume, count."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.set_num_threads(1)
    net = extraction.model()
    with torch.no_grad():
        whole = torch.cat([net(batch) for batch in extraction.samples().split(7)])
    done, at_work = 0, 0
    while done < kills:
        with tempfile.TemporaryDirectory() as folder:
            written = extraction.killed_until_done(Path(folder), min(EACH, kills - done), seed + done)
            acts = tv.open_activations(folder)
            assert acts.complete and torch.equal(acts["2"].tensor(), whole), f"seed {seed + done}"
            assert extraction.readable(Path(folder)) == extraction.SAMPLES
            done += len(written)
            at_work += sum(0 < count < extraction.SAMPLES for count in written)
    print(f"{done} kills, {at_work} of them in the middle: no sample lost or doubled")


if __name__ == "__main__":
    sys.exit(main())
