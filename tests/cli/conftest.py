"""A folder with programs, and the command line in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_vis as tv
from tests.kit import scripts
from tests.kit.forking import Server
from tests.kit.ranks import fake_group


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, and a trace of one of them."""
    found = scripts.write(tmp_path_factory.mktemp("programs"))
    torch.manual_seed(0)
    for name, width in (("net", 16), ("wide", 32)):
        parts = {"a": torch.nn.Linear(8, width), "b": torch.nn.Linear(width, 4)}
        torch.save(torch.nn.ModuleDict(parts).state_dict(), found / f"{name}.pth")
    for rank in range(2):
        with fake_group(2, rank):
            trace = tv.trace(lambda: dist.all_reduce(torch.ones(8)))
        trace.save(found / f"step.r{rank}.tvz")
    return found


@pytest.fixture(scope="session")
def cli(folder: Path) -> Iterator[Server]:
    """Runs ``torch-vis`` in that folder."""
    server = Server(folder)
    done = server("trace", "net.py:make_model", "--input", "2x8", "--backward", "-o", "net.tvz", "-q")
    assert done == (0, "", ""), done
    assert server("trace", "net.py:make_wide", "-i", "2x8", "-o", "wide.tvz", "-q").code == 0
    yield server
    server.close()
