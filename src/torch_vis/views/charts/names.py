"""Names along an axis: short enough to be read, and of very many those that say where one is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from torch_vis.views.charts.labels import WIDE, shortened_alike
from torch_vis.views.text.table import cut

ALL = 32  # names that are all written
MOST = 26  # of more, these many
NARROW = 26  # letters of a label under an axis
OTHERS = "others"
EVERY = (*(part * 10**power for power in range(9) for part in (1, 2, 5)),)
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def shortened(text: str, most: int = WIDE) -> str:
    """A label that there is room for.

    >>> shortened("transformer.h.0.attn.c_attn.weight", 24)
    't.h.0.attn.c_attn.weight'
    """
    return text if len(text) <= most else cut(text, most)


def placed(name: str, path: str, most: int) -> str:
    """What stands in a module, in about so many letters: a path that is long gives way first, but not its last part.

    >>> placed("mm", "encoder.layer.0.intermediate.dense", 32), placed("add → relu", "", 32)
    ('mm in e.l.0.intermediate.dense', 'add → relu')
    """
    if not path:
        return shortened(name, most)
    *before, last = path.split(".")
    least = len(".".join([*(part if part.isdigit() else part[:1] for part in before), last]))
    where = " in " + shortened(path, max(most - 4 - len(name), most // 3, least))
    return shortened(name, max(most - len(where), most // 3)) + where


def common_path(names: Sequence[str]) -> str:
    """The path that all names begin with, its last dot included.

    >>> common_path(["model.h.0.mlp", "model.h.1.mlp", "model.head"]), common_path(["a", "b"])
    ('model.', '')
    """
    shared = []
    for parts in zip(*(name.split(".")[:-1] for name in names)):
        if len(set(parts)) > 1 or parts[0].isdigit():
            break
        shared.append(parts[0])
    return "".join(f"{part}." for part in shared)


def family(name: str) -> str:
    """A name with the number of its layer left open: what stands in each of a stack of blocks alike.

    >>> family("encoder.layer.11.output.dense"), family("head")
    ('encoder.layer.*.output.dense', 'head')
    """
    return NUMBER.sub("*", name, count=1)


def families(names: Sequence[str], most: int) -> dict[str, str] | None:
    """For each name what it is called among its like, where names are many and of few kinds; None where not.

    >>> layers = [f"h.{block}.{part}" for block in range(20) for part in ("attn", "mlp")]
    >>> sorted(set(families([*layers, "head"], most=8).values()))
    ['attn', 'mlp', 'others']
    """
    if len(names) <= ALL:
        return None
    kinds = Counter(family(name) for name in names)
    repeated = [kind for kind, number in kinds.items() if number > 2]
    if not repeated or len(repeated) > most or sum(kinds[kind] for kind in repeated) < len(names) / 2:
        return None
    heads = {kind.partition("*")[0] for kind in repeated}
    titles = {kind: kind.partition("*.")[2] if len(heads) == 1 else kind for kind in repeated}
    return {name: titles.get(family(name)) or OTHERS for name in names}


def named_ticks(names: Sequence[str]) -> tuple[list[float], list[str]]:
    """The places whose names are written, and the names: all of few; of many, the first of each block of a stack.

    >>> named_ticks(["stem", "head"])
    ([0.0, 1.0], ['stem', 'head'])
    >>> layers = [f"model.h.{block}.{part}" for block in range(40) for part in ("attn", "mlp")]
    >>> named_ticks([*layers, "model.head"])[1][:3]
    ['h.0', 'h.2', 'h.4']
    """
    shared = len(common_path(names)) if len(names) > 1 else 0
    if len(names) <= ALL:
        told = shortened_alike([name[shared:] for name in names], NARROW)
        return [float(place) for place in range(len(names))], told
    blocks = [_block(name[shared:]) for name in names]
    starts = [place for place, block in enumerate(blocks) if not place or block != blocks[place - 1]]
    stacked = [place for place in starts if NUMBER.search(blocks[place])]
    apart = len(names) / MOST
    chosen: list[int] = []
    for place in [*_spaced(stacked, apart), *starts]:  # single layers where there is room between the blocks
        if all(abs(place - other) >= apart for other in chosen):
            chosen.append(place)
    chosen.sort()
    return [float(place) for place in chosen], shortened_alike([blocks[place] for place in chosen], NARROW)


def _spaced(places: Sequence[int], apart: float) -> list[int]:
    """Every so many of the places that they stand apart: numbers that go up by twos and fives read well."""
    if len(places) < 2:
        return list(places)
    between = (places[-1] - places[0]) / (len(places) - 1)
    every = next(number for number in EVERY if number * between >= apart)
    return list(places[::every])


def _block(name: str) -> str:
    """A path down to the number of its block."""
    found = NUMBER.search(name)
    return name[: found.end()] if found else name
