"""Labels of one axis, shortened by one rule for all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from torch_vis.graph.text import shortened
from torch_vis.views.text.table_layout import cut

WIDE = 60  # letters of a label beside a row
LINE = re.compile(r"(.*[/\\])?([^/\\\s]+:\d+(?: in .+)?)")  # a source line: its folder, and the rest
NAMESPACE = re.compile(r"^void |(?:\w+::|\(anonymous namespace\)::)+")
ARGUMENTS = re.compile(r"\((?!anonymous)[^()]*\)$")
ARROW = " → "
PATH = re.compile(r"[^\s/\\:<>()]+")


def shortened_alike(texts: Sequence[str], most: int = WIDE) -> list[str]:
    """The labels of one axis, shortened by one rule for all of them, and still distinct.

    Source lines keep as many of the last folders as there is room for in each. Of module paths a part that gives way
    does so wherever it stands, to as many letters as tell it from those beside it; what is too long even then loses
    its middle, a chain of operations the links between the first and the last.

    >>> lines = ["lib/models/bert.py:335 in BertIntermediate.forward", "lib/activations.py:9 in gelu"]
    >>> shortened_alike(lines, 44)
    ['bert.py:335 in BertIntermediate.forward', 'activations.py:9 in gelu']
    >>> shortened_alike(["encoder.layer.0.output", "encoder.norm", "embeddings.norm"], 18)
    ['en.layer.0.output', 'en.norm', 'embeddings.norm']
    """
    if all(len(text) <= most for text in texts):
        return list(texts)
    texts = _bare(texts)
    lines = [LINE.fullmatch(text) for text in texts]
    sites = iter(_fewer_folders([(line[1] or "", line[2]) for line in lines if line], most))
    others = iter(_paths_alike([text for text, line in zip(texts, lines) if not line], most))
    return _without_middles([next(sites if line else others) for line in lines], most)


def _bare(texts: Sequence[str]) -> list[str]:
    """Names of C++ kernels without namespaces and arguments; other names unchanged.

    >>> _bare(["void at::native::reduce_kernel<512, at::native::Sum<float>>(at::Tensor)", "memset (device)"])
    ['reduce_kernel<512, Sum<float>>', 'memset (device)']
    """
    bare = [NAMESPACE.sub("", ARGUMENTS.sub("", text)) if "::" in text else text for text in texts]
    return bare if len(set(bare)) == len(set(texts)) else list(texts)


def _fewer_folders(lines: Sequence[tuple[str, str]], most: int) -> list[str]:
    """Source lines with the same number of last folders each: the most that fit, but enough to distinguish files."""
    if not lines:
        return []
    folders = [[part for part in re.split(r"(?<=[/\\])", folder) if part] for folder, _ in lines]
    kept = ["".join(line) for line in lines]
    different = len(set(kept))
    for number in range(max(map(len, folders)), -1, -1):
        fewer = [
            "".join(parts[max(0, len(parts) - number) :]) + end for parts, (_, end) in zip(folders, lines)
        ]
        if len(set(fewer)) < different:
            break
        kept = fewer
        if all(len(text) <= most for text in kept):
            break
    return kept


def _paths_alike(texts: Sequence[str], most: int) -> list[str]:
    """Labels with the first parts of module paths abbreviated, as few of them as will do."""
    spans = [_path_in(text) for text in texts]
    paths = [text[start:end].split(".") for text, (start, end) in zip(texts, spans)]
    beside: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        for level, part in enumerate(path):
            beside.setdefault(tuple(path[:level]), set()).add(part)
    short: dict[tuple[str, ...], str] = {}
    kept = list(texts)
    for level in range(max(map(len, paths), default=0)):
        for path, text in zip(paths, kept):
            if len(text) > most and level < len(path) - 1:
                short[tuple(path[: level + 1])] = _initial(path[level], beside[tuple(path[:level])])
        kept = [
            text[:start] + ".".join(_abbreviated(path, short)) + text[end:]
            for text, path, (start, end) in zip(texts, paths, spans)
        ]
        if all(len(text) <= most for text in kept):
            break
    return kept


def _path_in(text: str) -> tuple[int, int]:
    """Where the path of a module stands in a label: after ``in``, or else at the start."""
    start = text.rfind(" in ") + 4 if " in " in text else 0
    match = PATH.match(text, start)
    end = match.end() if match else start
    return (start, end) if match and (end == len(text) or text[end] == " ") else (start, start)


def _abbreviated(path: Sequence[str], short: Mapping[tuple[str, ...], str]) -> list[str]:
    last = len(path) - 1
    return [
        part if level == last else short.get(tuple(path[: level + 1]), part)
        for level, part in enumerate(path)
    ]


def _initial(part: str, beside: Collection[str]) -> str:
    """The first letters of a part of a path, as many as no other one at its place begins with; numbers stay."""
    if part.isdigit():
        return part
    others = [other for other in beside if other != part]
    for end in range(1, len(part)):
        if not any(other.startswith(part[:end]) for other in others):
            return part[:end]
    return part


def _without_middles(texts: Sequence[str], most: int) -> list[str]:
    """Texts that fit; where two came out the same, what is left of each is where they differ."""
    kept = [_without_middle(text, most) for text in texts]
    alike: dict[str, list[str]] = {}
    for text, short in zip(texts, kept):
        alike.setdefault(short, []).append(text)
    for short, group in alike.items():
        if len(set(group)) > 1:
            # what these two begin with, all do
            first, last = min(group), max(group)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last)))
            start = max(same - 3, most // 3)
            kept = [_around(text, start, most) if now == short else now for text, now in zip(texts, kept)]
    return kept


def _without_middle(text: str, most: int) -> str:
    """A text that fits; of what stands in a module, the name gives way and not the path."""
    if len(text) <= most:
        return text
    name, between, path = text.rpartition(" in ")
    if not between or LINE.fullmatch(text):
        return _fewer_links(text, most)
    if len(name) < most // 2:
        path = _cut(path, most - len(name + between))
    else:
        path = _cut(path, most // 2)
    return _fewer_links(name, most - len(between + path)) + between + path


def _fewer_links(text: str, most: int) -> str:
    """A text that fits; of a chain of operations those between the first and the last give way."""
    first, *between, last = text.split(ARROW) if ARROW in text else (text, "")
    chain = f"{first}{ARROW}…{ARROW}{last}"
    return chain if between and len(chain) <= most else _cut(text, most)


def _cut(text: str, most: int) -> str:
    return shortened(text, most, head=(most - 1) // 3)


def _around(text: str, start: int, most: int) -> str:
    """A text that fits, by its beginning and by what stands from a place on."""
    head = most // 3
    rest = text[start:]
    wide = most - head - 1
    return f"{text[:head]}…{rest if len(rest) <= wide else rest[: wide - 1] + '…'}"


ALL = 32  # names that are all written
MOST = 26  # of more, these many
NARROW = 26  # letters of a label under an axis
OTHERS = "others"
EVERY = (*(part * 10**power for power in range(9) for part in (1, 2, 5)),)
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def placed(name: str, path: str, most: int) -> str:
    """What stands in a module, in about so many letters: a path that is long gives way first, but not its last part.

    >>> placed("mm", "encoder.layer.0.intermediate.dense", 32), placed("add → relu", "", 32)
    ('mm in …0.intermediate.dense', 'add → relu')
    """
    if not path:
        return cut(name, most)
    *before, last = path.split(".")
    least = len(".".join([*(part if part.isdigit() else part[:1] for part in before), last]))
    where = " in " + cut(path, max(most - 4 - len(name), most // 3, least))
    return cut(name, max(most - len(where), most // 3)) + where


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
        labels = shortened_alike([name[shared:] for name in names], NARROW)
        return [float(index) for index in range(len(names))], labels
    blocks = [_block(name[shared:]) for name in names]
    starts = [index for index, block in enumerate(blocks) if not index or block != blocks[index - 1]]
    stacked = [index for index in starts if NUMBER.search(blocks[index])]
    spacing = len(names) / MOST
    chosen: list[int] = []
    for index in [
        *_spaced(stacked, spacing),
        *starts,
    ]:  # single layers where there is room between the blocks
        if all(abs(index - other) >= spacing for other in chosen):
            chosen.append(index)
    chosen.sort()
    return [float(index) for index in chosen], shortened_alike([blocks[index] for index in chosen], NARROW)


def _spaced(positions: Sequence[int], spacing: float) -> list[int]:
    """Every n-th label, where n is a round number: steps of two and five read well."""
    if len(positions) < 2:
        return list(positions)
    between = (positions[-1] - positions[0]) / (len(positions) - 1)
    every = next(number for number in EVERY if number * between >= spacing)
    return list(positions[::every])


def _block(name: str) -> str:
    """A path down to the number of its block."""
    match = NUMBER.search(name)
    return name[: match.end()] if match else name
