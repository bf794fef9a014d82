"""A script that runs as one of several ranks: which of them are traced, and how their traces come together.

Traces go through the store that torch.distributed has for ranks to find each other, so that nothing is said in any
group of the script's. A rank that does not come is waited for only so long.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch_vis.errors import UsageError

# as many ranks are traced where nobody says how many
MOST_RANKS = 16
CHUNK_BYTES = 4 << 20
POLL_SECONDS = 0.02
# how long a rank that ends badly waits to hear whether its trace has been written
ANSWER_SECONDS = 3.0
# ranks of one machine, as torchrun starts them
LOCAL_RANKS = 8
# what torchrun sets
SURROUNDINGS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Job(NamedTuple):
    """The place of this process in its job, as torchrun says it; a job of one without it."""

    rank: int
    world_size: int
    traced: tuple[int, ...]

    @classmethod
    def here(cls, wanted: str | None) -> Job:
        """This process; ``wanted`` are the ranks to trace: numbers with commas, ``all``, or None for a choice of ours.

        >>> Job.here(None)
        Job(rank=0, world_size=1, traced=(0,))
        """
        rank, count = _number("RANK", 0), _number("WORLD_SIZE", 1)
        if wanted == "all" or (wanted is None and count <= MOST_RANKS):
            traced: tuple[int, ...] = tuple(range(count))
        elif wanted is None:
            traced = tuple(sorted({number * count // MOST_RANKS for number in range(MOST_RANKS)}))
        else:
            traced = tuple(sorted({rank_number(word, count) for word in wanted.split(",")}))
        return cls(rank, count, traced)

    @property
    def is_first(self) -> bool:
        """Whether it is this process that speaks and writes for all."""
        return self.rank == self.traced[0]

    @property
    def is_traced(self) -> bool:
        """Whether this rank is one of those that are traced."""
        return self.rank in self.traced

    def own_path(self, path: str) -> str:
        """The name of a file for this rank alone.

        >>> Job(3, 8, (0, 3)).own_path("runs/train.perfetto.json")
        'runs/train.r3.perfetto.json'
        """
        folder, name = os.path.split(path)
        stem, dot, endings = name.partition(".")
        return os.path.join(folder, f"{stem}.r{self.rank}{dot}{endings}")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def rank_number(word: str, count: int) -> int:
    """The rank that a word of ``--ranks`` is, of so many."""
    if not word.strip().isdigit() or int(word) >= count:
        raise UsageError(f"--ranks takes ranks from 0 to {count - 1}, as in 0,3, or all; {word!r} is none")
    return int(word)


def set_surroundings(rank: int, world_size: int) -> None:
    """Let this process look as if torchrun had started it."""
    local = min(world_size, LOCAL_RANKS)
    numbers = (rank, world_size, rank % local, local, "localhost", 29500)
    os.environ.update(zip(SURROUNDINGS, map(str, numbers)))


def usual_surroundings() -> dict[str, str]:
    """The environment for a process that torchrun has not started."""
    return {name: value for name, value in os.environ.items() if name not in SURROUNDINGS}


def axes_of(option: str, text: str, kind: Callable[[str], Any]) -> dict[str, Any]:
    """What an option says of each axis of a mesh.

    >>> axes_of("--world", "dp=4,tp=2", int)
    {'dp': 4, 'tp': 2}
    """
    axes: dict[str, Any] = {}
    for part in text.split(","):
        axis, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not axis or not value or (kind is int and not value.isdigit()):
            example = "dp=4,tp=2" if kind is int else "tp=450GB/s"
            raise UsageError(f"{option} takes axes as in {example}; {part!r} is none")
        axes[axis] = kind(value)
    return axes


def store() -> Any:
    """Where ranks can leave something for each other; None in a process that is no rank."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _key(label: str, rank: int, part: str) -> str:
    return f"torch_vis/{label}/{rank}/{part}"


def leave(where: Any, label: str, job: Job, trace: Any) -> None:
    """Leave the trace of this rank for the first one."""
    from torch_vis.graph.io import tvz

    data = io.BytesIO()
    tvz.write(data, trace)
    content = data.getvalue()
    chunks = range(0, len(content), CHUNK_BYTES)
    for number, start in enumerate(chunks):
        where.set(_key(label, job.rank, str(number)), content[start : start + CHUNK_BYTES])
    where.set(_key(label, job.rank, "parts"), str(len(chunks)))


def note_written(where: Any, label: str, job: Job) -> None:
    """On the first rank: let the others know that what they left is in its file."""
    where.set(_key(label, job.traced[0], "written"), "yes")


def is_written(where: Any, label: str, job: Job) -> bool:
    """Whether the first rank has written what this one left; not if it cannot be asked any more."""
    answers: list[bool] = []

    def ask() -> None:
        # a store that went with the first rank raises, and one that another thread waits for does not answer
        with contextlib.suppress(RuntimeError):
            answers.append(bool(where.check([_key(label, job.traced[0], "written")])))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    return any(answers)


def collect(where: Any, label: str, job: Job, seconds: float) -> dict[int, Any]:
    """On the first rank: the parts of the others, by rank; without those that were not there in time."""
    from torch_vis._trace import Trace
    from torch_vis.graph.io import tvz

    waiting = [rank for rank in job.traced if rank != job.rank]
    traces: dict[int, Any] = {}
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        came = [rank for rank in waiting if where.check([_key(label, rank, "parts")])]
        for rank in came:
            count = int(where.get(_key(label, rank, "parts")))
            content = b"".join(where.get(_key(label, rank, str(number))) for number in range(count))
            traces[rank] = Trace.of(tvz.read(f"what rank {rank} sent", content, float("inf")))
            waiting.remove(rank)
            deadline = time.monotonic() + seconds
        if not came:
            time.sleep(POLL_SECONDS)
    return traces
