"""What machines can do at most: arithmetic by element type, memory bandwidth and size, each from its maker's datasheet.

The figures are in ``hardware.json``, one row per device. No program can exceed them, and few come near:
``datasheet_efficiency`` knows what share of them operations reach.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from torch_vis.errors import NoMatch, UsageError, no_match
from torch_vis.ops.families import REAL_DTYPES

# JSON and not TOML: Python 3.10 has no reader for TOML, and a dependency for one table is too much.
TABLE = Path(__file__).with_name("hardware.json")
GIGA, TERA = 1e9, 1e12
CLASSES = ("gpu", "cpu", "accelerator")
CPU_OVERHEAD_NS = 3000.0
WIDER = {
    "int8": ("int8", "float8", "bfloat16", "float16", "float32"),
    "float8": ("float8", "bfloat16", "float16", "float32"),
    # where bfloat16 is not built in, it is computed in float32
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "bfloat16", "float32"),
    "tf32": ("tf32", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
}
"""For each element type itself and those that can compute it, nearest first."""
VENDOR_WORDS = r"nvidia|tesla|geforce|quadro|amd|instinct|intel|r|tm|cpu|gpu|sxm\d?|pcie|hbm\d?e?|\d+gb"


@dataclass(frozen=True)
class Hardware:
    """A machine's limits: FLOP/s by element type, bytes per second, bytes of memory, and where the figures are from.

    ``class_`` is ``"gpu"``, ``"cpu"`` or ``"accelerator"``. ``overhead_ns`` is the least that one operation takes.
    An element type that is not named computes like the next wider one that is.

    >>> from torch_vis.analysis.machine.hardware import find_hardware
    >>> card = find_hardware("a100")
    >>> card.name, card.peak("bfloat16") / 1e12, card.bandwidth / 1e9
    ('A100 80GB SXM', 312.0, 2039.0)
    """

    name: str
    class_: str
    peaks: dict[str, float]
    bandwidth: float
    memory_bytes: int
    source: str
    overhead_ns: float = 2000.0
    # measured while so much else ran that the figures are hardly what the machine can do
    disturbed: bool = False
    aliases: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.peaks if name not in REAL_DTYPES]
        if unknown:
            raise no_match("element type", unknown[0], REAL_DTYPES)
        if not self.name.strip():
            raise UsageError("hardware needs a name")
        if self.class_ not in CLASSES:
            raise no_match("class of hardware", str(self.class_), CLASSES)
        figures = [*self.peaks.values(), self.bandwidth, self.memory_bytes]
        if not self.peaks or not all(0 < figure < math.inf for figure in figures):
            raise UsageError(f"{self.name!r} needs a peak, a bandwidth and a memory size above 0")

    def peak(self, dtype: str) -> float:
        """FLOP/s of an element type, or of the next wider one that has a figure; the lowest there is at worst."""
        return self.peaks[self.computes_in(dtype)]

    def computes_in(self, dtype: str) -> str:
        """The element type whose peak is used for another.

        >>> find_hardware("a100").computes_in("int8"), find_hardware("a100").computes_in("float8")
        ('int8', 'bfloat16')
        """
        return self.figure_for(dtype) or min(self.peaks, key=self.peaks.__getitem__)

    def figure_for(self, dtype: str) -> str | None:
        """The element type whose figure is used for another: itself or a wider one; None without a figure.

        >>> find_hardware("v100").figure_for("bfloat16"), find_hardware("tpu-v4").figure_for("float64")
        ('float32', None)
        """
        return next((name for name in WIDER.get(dtype, (dtype,)) if name in self.peaks), None)


class Generation(NamedTuple):
    """A generation of processors: FLOP of one core and cycle by element type, bytes per second of a socket."""

    flop_per_cycle: dict[str, float]
    bandwidth: float
    source: str


def cpu(
    generation: str, *, cores: int, ghz: float, memory_bytes: int = 256 * 10**9, name: str | None = None
) -> Hardware:
    """A processor by its generation: FLOP/s are cores times clock times what one core does in a cycle.

    >>> server = cpu("sapphire rapids", cores=32, ghz=2.0)
    >>> server.peak("float32") / 1e12, server.peak("bfloat16") / 1e12
    (4.096, 65.536)
    """
    row = GENERATIONS.get(generation.lower())
    if row is None:
        raise no_match("processor generation", generation, GENERATIONS)
    title = name or f"{generation.title()}, {cores} cores"
    return _processor(row, title, cores, ghz, memory_bytes)


def _processor(row: Generation, name: str, cores: int, ghz: float, memory_bytes: int) -> Hardware:
    peaks = {dtype: flop * cores * ghz * GIGA for dtype, flop in row.flop_per_cycle.items()}
    return Hardware(name, "cpu", peaks, row.bandwidth, memory_bytes, row.source, overhead_ns=CPU_OVERHEAD_NS)


# ---------------------------------------------------------------- the table


def read_table(content: Mapping[str, Any]) -> tuple[list[Hardware], dict[str, Generation]]:
    """The devices and the generations of processors of a table; a row that is wrong is refused by its name.

    >>> row = {"name": "X1", "aliases": [], "tflops": {"float32": 1}, "gb_per_s": 9, "gb": 8, "source": "a guess"}
    >>> devices, _ = read_table({"gpu": [row], "accelerator": [], "cpu": [], "cpu_generation": []})
    >>> devices[0].peaks, devices[0].memory_bytes
    ({'float32': 1000000000000.0}, 8000000000)
    """
    generations = {row["name"]: _row(_generation, row) for row in content["cpu_generation"]}
    devices = [_row(_device, row, class_) for class_ in ("gpu", "accelerator") for row in content[class_]]
    devices += [_row(_cpu, row, generations) for row in content["cpu"]]
    keys = [key for device in devices for key in {_key(device.name), *map(_key, device.aliases)}]
    repeated = next((key for key in keys if keys.count(key) > 1), None)
    if repeated is not None:
        raise ValueError(f"two devices of the hardware table have the name or alias {repeated!r}")
    return devices, generations


def _row(read: Any, row: dict[str, Any], *more: Any) -> Any:
    try:
        return read(*more, **row)
    except (TypeError, KeyError, LookupError, UsageError) as error:
        raise ValueError(
            f"the row {row.get('name', row)!r} of the hardware table is wrong: {error}"
        ) from error


def _generation(*, name: str, flop_per_cycle: dict[str, float], gb_per_s: float, source: str) -> Generation:
    return Generation(flop_per_cycle, gb_per_s * GIGA, source)


def _device(
    class_: str,
    *,
    name: str,
    aliases: list[str],
    tflops: dict[str, float],
    gb_per_s: float,
    gb: float,
    source: str,
) -> Hardware:
    peaks = {dtype: rate * TERA for dtype, rate in tflops.items()}
    return Hardware(name, class_, peaks, gb_per_s * GIGA, int(gb * GIGA), source, aliases=tuple(aliases))


def _cpu(
    generations: dict[str, Generation],
    *,
    name: str,
    aliases: list[str],
    generation: str,
    cores: int,
    ghz: float,
    gb: float,
) -> Hardware:
    profile = _processor(generations[generation], name, cores, ghz, int(gb * GIGA))
    return replace(profile, aliases=tuple(aliases))


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower().replace("nvidia", "").replace("amd", ""))


_KNOWN: dict[str, Hardware] = {}
_ALIASES: dict[str, str] = {}


def _add(profile: Hardware) -> None:
    _KNOWN[_key(profile.name)] = profile
    _ALIASES.update({_key(alias): _key(profile.name) for alias in profile.aliases})


_DEVICES, GENERATIONS = read_table(json.loads(TABLE.read_text(encoding="utf-8")))
for _profile in _DEVICES:
    _add(_profile)


# ---------------------------------------------------------------- looking up


def known() -> tuple[str, ...]:
    """The names that have a profile.

    >>> import torch_vis as tv
    >>> "H200" in tv.hardware.known()
    True
    """
    return tuple(profile.name for profile in _KNOWN.values())


def register(profile: Hardware) -> Hardware:
    """Register a custom machine under its name; an existing profile is not replaced.

    >>> import torch_vis as tv
    >>> card = tv.hardware.Hardware("My card 7", "gpu", {"float32": 10e12}, 500e9, 16 * 10**9, "measured")
    >>> if "My card 7" not in tv.hardware.known():
    ...     _ = tv.hardware.register(card)
    >>> "My card 7" in tv.hardware.known()
    True
    """
    if not isinstance(profile, Hardware):
        raise UsageError(f"hardware.register() takes a Hardware, not {type(profile).__name__}")
    if _key(profile.name) in _KNOWN:
        raise UsageError(f"there is a profile {_KNOWN[_key(profile.name)].name!r} already; use another name")
    _add(profile)
    return profile


def find_hardware(name: str | Hardware) -> Hardware:
    """The profile of that name, however it is spelled; an unknown name raises with the nearest ones.

    >>> find_hardware("NVIDIA H100 SXM").name, find_hardware("tpu_v5e").name
    ('H100 SXM', 'TPU v5e')
    >>> try:
    ...     find_hardware("H10O")
    ... except LookupError as error:
    ...     print(str(error).partition("?")[0])
    no hardware 'H10O'; did you mean 'H100 SXM' or 'A10'
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str):
        raise UsageError(f"hardware is a name or a Hardware, not {type(name).__name__} {name!r}")
    key = _key(name)
    profile = _KNOWN.get(_ALIASES.get(key, key)) or _by_driver_name(name)
    if profile is None:
        raise _unknown(name)
    return profile


class DeviceName(NamedTuple):
    """The parts of a device's name: the model, and if they are in it the gigabytes and the form (pcie, sxm)."""

    model: str
    gigabytes: int | None
    form: str


def _device_name(name: str) -> DeviceName:
    """A driver's name of a device in its parts: ``"NVIDIA A100-SXM4-80GB"`` is an a100 of 80, in the form sxm."""
    words = re.findall(r"[a-z0-9+]+", name.lower())
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    model = "".join(word for word in words if not re.fullmatch(VENDOR_WORDS, word))
    forms = [word.rstrip("0123456789") for word in words if re.fullmatch(r"sxm\d?|pcie", word)]
    return DeviceName(model, sizes[0] if sizes else None, forms[0] if forms else "")


def _by_driver_name(name: str) -> Hardware | None:
    """The one profile that a driver's name for a device can mean; what it does not say is taken for the usual form."""
    wanted = _device_name(name)
    candidates = []
    for key, profile in _KNOWN.items():
        known = _device_name(profile.name)
        sizes = (None, known.gigabytes, round(profile.memory_bytes / GIGA))
        # a card has another clock than a module; a profile that names no form is of both
        other_form = wanted.form == "pcie" and known.form == "sxm"
        if wanted.model == known.model and wanted.gigabytes in sizes and not other_form:
            candidates.append((known.form == wanted.form, _ALIASES.get(wanted.model) == key, profile))
    best = max(candidates, key=lambda candidate: candidate[:2], default=None)
    return None if best is None else best[2]


def _unknown(name: str) -> Exception:
    """The error for an unknown name; names are compared by what identifies a device, not by what a vendor adds."""
    titles = {key: known.name for key, known in _KNOWN.items()}
    titles.update({alias: _KNOWN[key].name for alias, key in _ALIASES.items() if key in _KNOWN})
    model = _device_name(name).model
    same = [known.name for known in _KNOWN.values() if model and _device_name(known.name).model == model]
    near = difflib.get_close_matches(_key(name), titles, n=6, cutoff=0.55)
    names = list(dict.fromkeys([*same, *(titles[key] for key in near)]))[:3]
    if not names:
        return no_match("hardware", name, known())
    return NoMatch(f"no hardware {name!r}; did you mean {' or '.join(map(repr, names))}?")


# Amounts of memory, which the name of a device can stand for

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
         "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
NUMBER = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf|nan)\s*([kmgt]i?|)b?\s*", re.IGNORECASE
)


def amount_bytes(amount: Any, what: str, *, hardware: bool = True) -> int:
    """A number of bytes from what was passed as the argument ``what``; ``hardware`` lets it be a device or its name.

    >>> amount_bytes("1.5 GiB", "memory"), amount_bytes("80GB", "memory"), amount_bytes(1024, "memory")
    (1610612736, 80000000000, 1024)
    >>> amount_bytes("T4", "memory")
    16000000000
    """
    if hardware and isinstance(amount, Hardware):
        size_bytes: float = amount.memory_bytes
    elif isinstance(amount, str):
        match = NUMBER.fullmatch(amount)
        if not match:
            return _of_hardware(amount, what) if hardware else _refuse(amount, what, hardware)
        size_bytes = float(match[1]) * UNITS[match[2].lower()]
    elif isinstance(amount, Real) and not isinstance(amount, bool):
        size_bytes = float(amount) if not isinstance(amount, int) else amount
    else:
        return _refuse(amount, what, hardware)
    if not math.isfinite(size_bytes) or size_bytes < 1:
        raise UsageError(f"{what}={amount!r}: a number of bytes is finite and at least 1")
    return int(size_bytes)


def _of_hardware(name: str, what: str) -> int:
    try:
        return find_hardware(name).memory_bytes
    except NoMatch as error:
        raise UsageError(f"{_wanted(what, True)}, not {name!r} ({error})") from error


def _refuse(amount: Any, what: str, hardware: bool) -> int:
    raise UsageError(f"{_wanted(what, hardware)}, not {amount!r}")


def _wanted(what: str, hardware: bool) -> str:
    if hardware:
        return f"{what} is a number of bytes, a text like '16 GiB' or the name of hardware"
    return f"{what} is a number of bytes or a text like '16 GiB'"
