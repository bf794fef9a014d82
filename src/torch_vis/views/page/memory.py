"""What the page's memory timeline is drawn from: what each block is for, and the bytes of each use along the run."""

from __future__ import annotations

from typing import Any

from torch_vis.graph import Graph
from torch_vis.graph.lifetimes import MemoryByUse


def memory_columns(graph: Graph, memory: MemoryByUse | None) -> tuple[list[str], dict[str, Any]]:
    """The words for the uses there are, and the columns; nothing where no memory was recorded.

    ``storage_from`` is there if a block of which the graph says that it came from outside takes up memory only later.
    """
    if memory is None:
        return [], {}
    columns = {"storage_use": memory.use, "storage_value": memory.value}
    if (memory.birth != graph.storage_birth).any():
        columns["storage_from"] = memory.birth
    for number, alive in enumerate(memory.during):
        columns[f"use:{number}"] = alive
    return list(memory.words), columns
