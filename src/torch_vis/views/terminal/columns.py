"""The columns that the tree can show: their headings, their widths, and how a figure is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch_vis.graph.text import count, duration, size
from torch_vis.views.terminal.config import ExplorerConfig
from torch_vis.views.terminal.forest import Forest


class ColumnSpec(NamedTuple):
    """One column: heading, kind of figure, width, which switch of the configuration it obeys, what it is."""

    title: str
    kind: str
    width: int
    switch: str
    help: str


COUNT, BYTES, TIME, SHARE, PLAIN, TEXT = "count", "bytes", "time", "share", "plain", "text"
NORM = "norm"
PARAMS, SHAPES, TIMING, MEMORY, ALWAYS = "parameter_counts", "shapes", "timing", "memory", ""

COLUMNS: dict[str, ColumnSpec] = {
    "type": ColumnSpec("class", TEXT, 18, ALWAYS, "the module's class"),
    "args": ColumnSpec("arguments", TEXT, 30, ALWAYS, "what it was made with, as its repr says"),
    "params": ColumnSpec("params", COUNT, 9, PARAMS, "parameters in it and below, tied ones once"),
    "params_share": ColumnSpec("params %", SHARE, 8, PARAMS, "its share of the model's parameters"),
    "elements": ColumnSpec("elements", COUNT, 9, PARAMS, "elements of the tensors in it, shared memory once"),
    "elements_share": ColumnSpec("elements %", SHARE, 10, PARAMS, "its share of all elements"),
    "own_params": ColumnSpec("own params", COUNT, 10, PARAMS, "parameters that it holds itself"),
    "trainable": ColumnSpec("trainable", COUNT, 9, PARAMS, "parameters that require gradients"),
    "modules": ColumnSpec("modules", COUNT, 8, ALWAYS, "modules in it, itself included"),
    "shapes": ColumnSpec("own shapes", TEXT, 24, SHAPES, "the shapes of its own parameters"),
    "dtype": ColumnSpec("dtype", TEXT, 9, ALWAYS, "element types of its own tensors"),
    "device": ColumnSpec("device", TEXT, 8, ALWAYS, "where its own tensors are"),
    "bytes": ColumnSpec("size", BYTES, 9, MEMORY, "bytes of the parameters in it and below, tied ones once"),
    "bytes_share": ColumnSpec("size %", SHARE, 8, MEMORY, "its share of the model's parameter bytes"),
    "own_bytes": ColumnSpec("own size", BYTES, 9, MEMORY, "bytes of the parameters that it holds itself"),
    "buffer_bytes": ColumnSpec("buffers", BYTES, 9, MEMORY, "bytes of the buffers in it and below"),
    "calls": ColumnSpec("calls", PLAIN, 7, TIMING, "how often it was called"),
    "time": ColumnSpec("time", TIME, 9, TIMING, "forward, with the modules it called"),
    "time_share": ColumnSpec("time %", SHARE, 8, TIMING, "its share of the forward time"),
    "self": ColumnSpec("self", TIME, 9, TIMING, "forward, without the modules it called"),
    "mean": ColumnSpec("per call", TIME, 9, TIMING, "forward, the mean of its calls"),
    "backward": ColumnSpec("backward", TIME, 9, TIMING, "backward operations of it and below"),
    "backward_self": ColumnSpec("bwd self", TIME, 9, TIMING, "backward operations of its own"),
    "recomputed": ColumnSpec(
        "recomputed", TIME, 10, TIMING, "of backward, forward operations that it ran again (checkpointing)"
    ),
    "recomputed_ops": ColumnSpec("recomp. ops", PLAIN, 11, ALWAYS, "how many operations backward ran again"),
    "in": ColumnSpec("input", TEXT, 20, SHAPES, "the tensors that went in at the first call"),
    "out": ColumnSpec("output", TEXT, 20, SHAPES, "the tensors that came out at the first call"),
    "in_bytes": ColumnSpec("in size", BYTES, 9, MEMORY, "bytes that went in at the first call"),
    "out_bytes": ColumnSpec("out size", BYTES, 9, MEMORY, "bytes that came out at the first call"),
    "memory": ColumnSpec(
        "allocated", BYTES, 9, MEMORY, "bytes that its operations and those below made, forward"
    ),
    "flops": ColumnSpec("FLOPs", COUNT, 9, TIMING, "floating-point operations of it and below, forward"),
    "flops_share": ColumnSpec("FLOPs %", SHARE, 8, TIMING, "its share of the forward FLOPs"),
    "gradient": ColumnSpec("gradient", NORM, 9, ALWAYS, "norm of the gradients of the parameters in it"),
    "ops": ColumnSpec("ops", PLAIN, 7, ALWAYS, "operations of it and below, forward and backward"),
}
ADDITIVE = {
    "params",
    "elements",
    "own_params",
    "trainable",
    "modules",
    "bytes",
    "own_bytes",
    "buffer_bytes",
    "calls",
    "time",
}
ADDITIVE |= {
    "time_share",
    "params_share",
    "elements_share",
    "bytes_share",
    "flops_share",
    "self",
    "backward",
    "backward_self",
    "recomputed",
    "recomputed_ops",
}
ADDITIVE |= {"memory", "flops", "ops"}
DEFAULT = (
    "type", "params", "time", "self", "backward", "recomputed", "flops", "memory", "out", "calls", "bytes", "shapes",
)  # fmt: skip
WITHOUT_RUN = (
    "type", "params", "params_share", "elements", "elements_share", "bytes", "shapes", "dtype", "device", "args",
)  # fmt: skip


def available(forest: Forest) -> list[str]:
    """The columns that the forest has something for, in their usual order."""
    return [
        name for name in COLUMNS if name in forest.numbers or name in forest.texts or name in forest.later
    ]


def chosen(forest: Forest, config: ExplorerConfig) -> list[str]:
    """The columns to open with: those of a run where there was one, what the configuration switches off left out."""
    present = available(forest)
    wanted: Sequence[str] = DEFAULT if "time" in present or "ops" in present else WITHOUT_RUN
    off = {name for name in (PARAMS, SHAPES, TIMING, MEMORY) if not getattr(config, f"show_{name}")}
    present = [name for name in present if name not in forest.later]
    names = [name for name in wanted if name in present and COLUMNS[name].switch not in off]
    if config.compact_view:
        names = [name for name in names if COLUMNS[name].kind != TEXT]
    return names


def cell(name: str, figure: float) -> str:
    """A figure as the column writes it; nothing where it is not known.

    >>> cell("params", 25_557_032), cell("time", 1_500_000), cell("params_share", 0.5), cell("calls", float("nan"))
    ('25.6 M', '1.50 ms', '50.0 %', '')
    """
    if math.isnan(figure):
        return ""
    kind = COLUMNS[name].kind
    if kind == COUNT:
        return count(int(figure))
    if kind == BYTES:
        return size(int(figure))
    if kind == TIME:
        return duration(int(figure))
    if kind == NORM:
        return f"{figure:.3g}"
    if kind == SHARE:
        return f"{figure * 100:.1f} %"
    return f"{figure:,.0f}" if figure == int(figure) else f"{figure:.3g}"
