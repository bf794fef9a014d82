"""How the numbers along dimensions go through operations that only arrange: views, permutations, parts, joins."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_step import Dims, Entry, Grid, Ids, Part, Rule, Step


def _permute(step: Step) -> list[list[Entry]]:
    x, order = step.raw(0), step.arg(1)
    return [[x[place] for place in order]]


def _transpose(step: Step) -> list[list[Entry]]:
    made = list(step.raw(0))
    one, two = (step.arg(1), step.arg(2)) if step.node.name.startswith("transpose") else (-1, -2)
    if len(made) > 1:
        made[one], made[two] = made[two], made[one]
    return [made]


def _view(step: Step) -> list[list[Entry]]:
    return [reshaped(step, step.raw(0), step.shape(0), step.out)]


def _expand(step: Step) -> list[list[Entry]]:
    x, shape = step.raw(0), step.shape(0)
    out: list[Entry] = [None] * len(step.out)
    for back, size in enumerate(reversed(step.out), 1):
        if back <= len(x) and shape[-back] == size:
            out[-back] = x[-back]
        elif size:
            out[-back] = step.coupling.loose(size)
    return [out]


def _cat(step: Step) -> list[Dims]:
    parts, axis = step.arg(0), step.arg(1, 0)
    axis %= len(step.out)
    parts = [part for part in parts if len(part) == len(step.out)]  # an empty tensor may have one dimension
    out: Dims = list(parts[0])
    for part in parts[1:]:
        for place in range(len(out)):
            if place != axis:
                out[place] = step.tie(out[place], part[place])
    joined = [part[axis] for part in parts]
    if any(ids is None or step.coupling.is_loose(ids) for ids in joined):
        step.lock(joined, "it is put beside what cannot be followed")
        out[axis] = None
    else:
        out[axis] = np.concatenate([ids for ids in joined if ids is not None])
    return [out]


def _split(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(2, 0)
    axis %= len(x)
    lengths = [value.shape[axis] for value in step.node.outputs]
    ids = x[axis]
    if isinstance(ids, Part):
        left = _stiffened(step, x, ids)
        return [left] * len(lengths)
    pieces: list[Ids | None] = [None] * len(lengths)
    if step.coupling.is_loose(ids):
        pieces = [step.coupling.loose(length) for length in lengths]
    elif ids is not None and len(set(lengths)) == 1:
        # A program that cuts into equal parts does so by size: what goes from one must go from all.
        cut = np.split(ids, len(lengths))
        for piece in cut[1:]:
            step.tie(cut[0], piece)
        pieces = list(cut)
        step.coupling.size(ids, step.node.path)
    elif ids is not None:
        pieces = list(np.split(ids, np.cumsum(lengths)[:-1]))
        step.coupling.number(ids, step.node.path, "it is split into parts of fixed sizes")
    return [[*x[:axis], piece, *x[axis + 1 :]] for piece in pieces]


def _slice(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if step.shape(0)[axis] == step.out[axis]:
        return [list(x)]
    if isinstance(ids, Part):
        return [_stiffened(step, x, ids)]
    left: Entry = None
    if step.coupling.is_loose(ids) and step.out[axis]:
        left = step.coupling.loose(step.out[axis])
    elif ids is not None:
        left = ids[slice(step.arg(2), step.arg(3), step.arg(4, 1))]
        step.coupling.number(ids, step.node.path, "a part of it is taken by number")
    return [[*x[:axis], left, *x[axis + 1 :]]]


def _select(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if isinstance(ids, Part):
        left = _stiffened(step, x, ids, step.arg(2, 0))
        return [[*left[:axis], *left[axis + 1 :]]]
    step.lock([ids], "one of it is taken by number")
    return [[*x[:axis], *x[axis + 1 :]]]


def _unbind(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if not isinstance(ids, Part):
        step.lock([ids], "one of it is taken by number")
    made = []
    for number in range(len(step.node.outputs)):
        left = _stiffened(step, x, ids, number) if isinstance(ids, Part) else x
        made.append([*left[:axis], *left[axis + 1 :]])
    return made


def _pad(step: Step) -> list[Dims]:
    x, sizes = step.arg(0), step.arg(1)
    out = list(x)
    for number in range(len(sizes) // 2):
        if sizes[2 * number] or sizes[2 * number + 1]:
            step.lock([out[-1 - number]], "it is padded")
            out[-1 - number] = None
    return [out]


SHAPE_RULES: dict[str, Rule] = {
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "cat": _cat,
    **dict.fromkeys(
        "split chunk split_with_sizes unsafe_split unsafe_chunk unsafe_split_with_sizes".split(), _split
    ),
    "unbind": _unbind,
    "slice": _slice,
    "select": _select,
    "constant_pad_nd": _pad,
    **dict.fromkeys(
        "view _unsafe_view reshape _reshape_alias flatten unsqueeze squeeze unflatten".split(), _view
    ),
}


# ---------------------------------------------------------------- grids


def _stiffened(step: Step, dims: Sequence[Entry], part: Part, index: int = 0) -> list[Entry]:
    """Dimensions where one axis of a grid cannot be cut by itself any more, at one index of that axis."""
    grid = part.grid
    if grid.kept is not None:
        return [None if entry is part else entry for entry in dims]
    step.coupling.stiffen(grid, part.axis)
    taken = np.take(grid.ids, index, axis=part.axis)
    if taken.ndim == 1:
        if part.axis == 1:  # what was taken lay within the heads, and they are what is left
            step.coupling.line(taken)
        return [_other(entry, grid, part.axis, taken) for entry in dims]
    rigid = {axis - (axis > part.axis) for axis in grid.rigid if axis != part.axis}
    smaller = Grid(taken, grid.path, rigid)
    return [
        _other(
            entry,
            grid,
            part.axis,
            Part(smaller, entry.axis - (entry.axis > part.axis)) if isinstance(entry, Part) else None,
        )
        for entry in dims
    ]


def _other(entry: Entry, grid: Grid, gone: int, instead: Entry) -> Entry:
    if not isinstance(entry, Part) or entry.grid is not grid:
        return entry
    return None if entry.axis == gone else instead


def reshaped(step: Step, dims: Sequence[Entry], before: Sequence[int], after: Sequence[int]) -> list[Entry]:
    """The numbers along the dimensions of a tensor in another shape."""
    out: list[Entry] = [None] * len(after)
    for old, new in _matched(before, after):
        one, two = [place for place in old if before[place] > 1], [place for place in new if after[place] > 1]
        if len(one) == len(two) == 1:
            out[two[0]] = dims[one[0]]
            continue
        if len(one) > 1 and all(step.coupling.is_loose(dims[place]) for place in one):
            for place in two:  # which of them joins with what comes, nobody can tell
                out[place] = step.coupling.loose(after[place])
            continue
        cells = _cells(step, dims, before, old)
        if cells is None:
            continue
        cells = cells.reshape([after[place] for place in new])
        if len(old) > 1 or len(new) > 1:
            step.coupling.size(cells.ravel(), step.node.path)
        varies = [place for place in range(len(new)) if _varies(cells, place)] or [0]
        left = cells[tuple(slice(None) if place in varies else 0 for place in range(len(new)))].copy()
        if len(varies) == 1:
            out[new[varies[0]]] = left
            continue
        grid = Grid(left, step.node.path)
        for axis, place in enumerate(varies):
            out[new[place]] = Part(grid, axis)
    return out


def _cells(step: Step, dims: Sequence[Entry], before: Sequence[int], old: Sequence[int]) -> Ids | None:
    """The numbers of the elements that several dimensions span, None where there are none to follow."""
    sizes = [before[place] for place in old]
    entries = [dims[place] if before[place] > 1 else None for place in old]
    parts = [entry for entry in entries if isinstance(entry, Part)]
    whole = bool(parts) and parts[0].grid.kept is None and parts[0].grid.ids.ndim == len(parts)
    if whole and all(
        entry is None
        or (isinstance(entry, Part) and entry.grid is parts[0].grid)
        or step.coupling.is_loose(entry)
        for entry in entries
    ):
        turned = parts[0].grid.ids.transpose([part.axis for part in parts])
        lengths = [before[place] if isinstance(dims[place], Part) else 1 for place in old]
        return np.broadcast_to(
            turned.reshape([n if isinstance(e, Part) else 1 for n, e in zip(lengths, entries)]), sizes
        )
    lines = [step.coupling.settled(entry) for entry in entries]
    followed = [place for place, ids in enumerate(lines) if ids is not None]
    if len(followed) > 1:  # what is the same all along may be merged with anything
        followed = [place for place in followed if not step.coupling.is_loose(lines[place])] or followed[:1]
    if not followed:
        return None
    if len(followed) > 1:  # of heads and what is within them, heads can be cut
        step.lock([lines[place] for place in followed[1:]], "a view merges it with another")
    ids = lines[followed[0]]
    assert ids is not None
    return np.broadcast_to(ids.reshape([-1 if n == followed[0] else 1 for n in range(len(old))]), sizes)


def _varies(cells: Ids, axis: int) -> bool:
    first = np.take(cells, [0], axis=axis)
    return bool((cells != first).any())


def _matched(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes that hold the same elements: of ``(2, 3, 4)`` and ``(6, 4)``, 0, 1 and 0; 2 and 1."""
    if 0 in before or prod(before) != prod(after):
        return []
    found = []
    i = j = 0
    while i < len(before) and j < len(after):
        old, new = [i], [j]
        left, right = before[i], after[j]
        while left != right:
            if left < right:
                i += 1
                old.append(i)
                left *= before[i]
            else:
                j += 1
                new.append(j)
                right *= after[j]
        found.append((old, new))
        i, j = i + 1, j + 1
    return found
