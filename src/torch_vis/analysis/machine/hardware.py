"""What machines can do at most: arithmetic by element type, memory bandwidth and size, each from its maker's datasheet.

Peaks are dense (no structured sparsity) and with matrix units where there are any, at boost clock. They are what no
program can exceed, not what one gets: ``latency`` knows what share of them operations reach.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_vis.errors import UsageError, no_match
from torch_vis.ops.families import REAL_DTYPES

GIGA, TERA = 1e9, 1e12
CLASSES = ("gpu", "cpu", "accelerator")


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
        """The element type that one is computed in: itself, or what ``peak`` takes in its place.

        >>> find_hardware("a100").computes_in("int8"), find_hardware("a100").computes_in("float8")
        ('int8', 'bfloat16')
        """
        return self.figure_for(dtype) or min(self.peaks, key=self.peaks.__getitem__)

    def figure_for(self, dtype: str) -> str | None:
        """The element type whose figure holds for one: itself or a wider one; None where there is no such figure.

        >>> find_hardware("v100").figure_for("bfloat16"), find_hardware("tpu-v4").figure_for("float64")
        ('float32', None)
        """
        return next((name for name in WIDER.get(dtype, (dtype,)) if name in self.peaks), None)


WIDER = {
    "int8": ("int8", "float8", "bfloat16", "float16", "float32"),
    "float8": ("float8", "bfloat16", "float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),  # where it is not built in, it is computed in float32
    "float16": ("float16", "bfloat16", "float32"),
    "tf32": ("tf32", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
}
NVIDIA, AMD, INTEL = "NVIDIA datasheet", "AMD datasheet", "Intel datasheet"
GOOGLE, AWS = "Google Cloud TPU documentation", "AWS Neuron documentation"
APPLE = "Apple's bandwidth figure; arithmetic from GPU cores times 256 FLOP times clock"
COLUMNS = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")

# name, aliases; TFLOP/s in float64, float32, tf32, float16, bfloat16, float8, int8; GB/s; GB; source
_GPUS: list[tuple[str, str, tuple[float, ...], float, float, str]] = [
    ("V100 SXM2 16GB", "", (7.8, 15.7, 0, 125, 0, 0, 0), 900, 16, NVIDIA),
    ("V100 SXM2 32GB", "v100", (7.8, 15.7, 0, 125, 0, 0, 0), 900, 32, NVIDIA),
    ("T4", "t4", (0.25, 8.1, 0, 65, 0, 0, 130), 320, 16, NVIDIA),
    ("A10", "a10", (0.98, 31.2, 62.5, 125, 125, 0, 250), 600, 24, NVIDIA),
    ("A10G", "g5", (0.49, 31.5, 35, 70, 70, 0, 140), 600, 24, NVIDIA),
    ("A30", "a30", (10.3, 10.3, 82, 165, 165, 0, 330), 933, 24, NVIDIA),
    ("A40", "a40", (0.58, 37.4, 74.8, 149.7, 149.7, 0, 299.3), 696, 48, NVIDIA),
    ("A100 40GB", "a100-40", (19.5, 19.5, 156, 312, 312, 0, 624), 1555, 40, NVIDIA),
    ("A100 80GB PCIe", "a100-pcie", (19.5, 19.5, 156, 312, 312, 0, 624), 1935, 80, NVIDIA),
    ("A100 80GB SXM", "a100 a100-80 a100-sxm", (19.5, 19.5, 156, 312, 312, 0, 624), 2039, 80, NVIDIA),
    ("L4", "l4", (0.49, 30.3, 60, 121, 121, 242, 242), 300, 24, NVIDIA),
    ("L40S", "l40s", (1.4, 91.6, 183, 362, 362, 733, 733), 864, 48, NVIDIA),
    ("RTX A6000", "a6000", (0.6, 38.7, 77.4, 154.8, 154.8, 0, 309.7), 768, 48, NVIDIA),
    ("RTX 3090", "3090 geforce-rtx-3090", (0.56, 35.6, 35.6, 71, 71, 0, 284), 936, 24, NVIDIA),
    ("RTX 4090", "4090 geforce-rtx-4090", (1.3, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6), 1008, 24, NVIDIA),
    ("RTX 5090", "5090 geforce-rtx-5090", (1.6, 104.8, 104.8, 209.5, 209.5, 419, 838), 1792, 32, NVIDIA),
    ("H100 PCIe", "h100-pcie", (51, 51, 378, 756, 756, 1513, 1513), 2000, 80, NVIDIA),
    ("H100 SXM", "h100 h100-80gb-hbm3", (67, 67, 494.5, 989, 989, 1979, 1979), 3350, 80, NVIDIA),
    ("H200", "h200-sxm", (67, 67, 494.5, 989, 989, 1979, 1979), 4800, 141, NVIDIA),
    ("H200 NVL", "h200-nvl", (60, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5), 4800, 141, NVIDIA),
    ("GH200 96GB", "gh200-480gb", (67, 67, 494.5, 989, 989, 1979, 1979), 4000, 96, NVIDIA),
    ("GH200 144GB", "gh200", (67, 67, 494.5, 989, 989, 1979, 1979), 4900, 144, NVIDIA),
    ("B200", "b200-sxm", (40, 80, 1125, 2250, 2250, 4500, 4500), 8000, 192, NVIDIA),
    ("Jetson AGX Orin 64GB", "agx-orin", (0, 5.3, 10.6, 42.5, 42.5, 0, 85), 204.8, 64, NVIDIA),
    ("Jetson Orin NX 16GB", "orin-nx", (0, 1.9, 3.8, 12.5, 12.5, 0, 25), 102.4, 16, NVIDIA),
    ("Jetson Orin Nano 8GB", "orin-nano", (0, 1.28, 2.56, 10, 10, 0, 20), 68, 8, NVIDIA),
    ("MI210", "mi210", (45.3, 45.3, 0, 181, 181, 0, 181), 1638, 64, AMD),
    ("MI250X", "mi250x mi250", (95.7, 95.7, 0, 383, 383, 0, 383), 3277, 128, AMD),
    ("MI300X", "mi300x mi300", (163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9), 5300, 192, AMD),
    ("Data Center GPU Max 1550", "ponte-vecchio", (52, 52, 419, 839, 839, 0, 1678), 3277, 128, INTEL),
    ("Apple M1", "m1", (0, 2.6, 0, 2.6, 0, 0, 0), 68, 16, APPLE),
    ("Apple M1 Pro", "m1-pro", (0, 5.2, 0, 5.2, 0, 0, 0), 200, 32, APPLE),
    ("Apple M1 Max", "m1-max", (0, 10.4, 0, 10.4, 0, 0, 0), 400, 64, APPLE),
    ("Apple M1 Ultra", "m1-ultra", (0, 20.8, 0, 20.8, 0, 0, 0), 800, 128, APPLE),
    ("Apple M2", "m2", (0, 3.6, 0, 3.6, 3.6, 0, 0), 100, 24, APPLE),
    ("Apple M2 Pro", "m2-pro", (0, 6.8, 0, 6.8, 6.8, 0, 0), 200, 32, APPLE),
    ("Apple M2 Max", "m2-max", (0, 13.6, 0, 13.6, 13.6, 0, 0), 400, 96, APPLE),
    ("Apple M2 Ultra", "m2-ultra", (0, 27.2, 0, 27.2, 27.2, 0, 0), 800, 192, APPLE),
    ("Apple M3", "m3", (0, 3.5, 0, 3.5, 3.5, 0, 0), 100, 24, APPLE),
    ("Apple M3 Pro", "m3-pro", (0, 6.4, 0, 6.4, 6.4, 0, 0), 150, 36, APPLE),
    ("Apple M3 Max", "m3-max", (0, 14.1, 0, 14.1, 14.1, 0, 0), 400, 128, APPLE),
    ("Apple M4", "m4", (0, 4.3, 0, 4.3, 4.3, 0, 0), 120, 32, APPLE),
    ("Apple M4 Pro", "m4-pro", (0, 8.6, 0, 8.6, 8.6, 0, 0), 273, 64, APPLE),
    ("Apple M4 Max", "m4-max", (0, 17.2, 0, 17.2, 17.2, 0, 0), 546, 128, APPLE),
]
_ACCELERATORS: list[tuple[str, str, tuple[float, ...], float, float, str]] = [
    ("Gaudi 2", "gaudi2", (0, 0, 0, 0, 432, 865, 0), 2450, 96, INTEL),
    ("Gaudi 3", "gaudi3", (0, 0, 0, 0, 1835, 1835, 0), 3700, 128, INTEL),
    ("TPU v4", "tpu-v4", (0, 0, 0, 0, 275, 0, 275), 1200, 32, GOOGLE),
    ("TPU v5e", "tpu-v5e", (0, 0, 0, 0, 197, 0, 394), 819, 16, GOOGLE),
    ("TPU v5p", "tpu-v5p", (0, 0, 0, 0, 459, 0, 918), 2765, 95, GOOGLE),
    ("TPU v6e", "tpu-v6e trillium", (0, 0, 0, 0, 918, 0, 1836), 1640, 32, GOOGLE),
    ("Trainium", "trn1", (0, 47.5, 95, 190, 190, 190, 0), 820, 32, AWS),
    ("Trainium 2", "trn2", (0, 181, 667, 667, 667, 1299, 0), 2900, 96, AWS),
    ("Inferentia 2", "inf2", (0, 47.5, 95, 190, 190, 190, 0), 820, 32, AWS),
]

# FLOP of one core and cycle in float64, float32, bfloat16 and int8, and the GB/s of a socket with every channel filled
GENERATIONS: dict[str, tuple[float, float, float, float, float, str]] = {
    "skylake": (32, 64, 0, 0, 128.0, "Intel: 2 AVX-512 FMA units; 6 × DDR4-2666"),
    "cascade lake": (32, 64, 0, 256, 140.8, "Intel: 2 AVX-512 FMA units, VNNI; 6 × DDR4-2933"),
    "ice lake": (32, 64, 0, 256, 204.8, "Intel: 2 AVX-512 FMA units, VNNI; 8 × DDR4-3200"),
    "sapphire rapids": (32, 64, 1024, 2048, 307.2, "Intel: 2 AVX-512 FMA units, AMX; 8 × DDR5-4800"),
    "emerald rapids": (32, 64, 1024, 2048, 358.4, "Intel: 2 AVX-512 FMA units, AMX; 8 × DDR5-5600"),
    "granite rapids": (32, 64, 1024, 2048, 614.4, "Intel: 2 AVX-512 FMA units, AMX; 12 × DDR5-6400"),
    "rome": (16, 32, 0, 0, 204.8, "AMD: Zen 2, 2 FMA units of 256 bits; 8 × DDR4-3200"),
    "milan": (16, 32, 0, 0, 204.8, "AMD: Zen 3, 2 FMA units of 256 bits; 8 × DDR4-3200"),
    "genoa": (16, 32, 64, 128, 460.8, "AMD: Zen 4, AVX-512 over 256-bit units; 12 × DDR5-4800"),
    "turin": (32, 64, 128, 256, 576.0, "AMD: Zen 5, 2 FMA units of 512 bits; 12 × DDR5-6000"),
    "graviton3": (16, 32, 128, 256, 307.2, "Arm: Neoverse V1, 2 SVE units of 256 bits; 8 × DDR5-4800"),
    "graviton4": (16, 32, 128, 256, 537.6, "Arm: Neoverse V2, 4 SVE2 units of 128 bits; 12 × DDR5-5600"),
}
# name, aliases, generation, cores, GHz with all cores at wide vectors, GB
_CPUS = [
    ("Xeon Platinum 8180", "xeon-8180", "skylake", 28, 1.7, 384),
    ("Xeon Platinum 8280", "xeon-8280", "cascade lake", 28, 1.8, 384),
    ("Xeon Platinum 8380", "xeon-8380", "ice lake", 40, 2.0, 512),
    ("Xeon Platinum 8480+", "xeon-8480", "sapphire rapids", 56, 2.0, 512),
    ("Xeon Platinum 8592+", "xeon-8592", "emerald rapids", 64, 1.9, 512),
    ("Xeon 6980P", "xeon-6980", "granite rapids", 128, 2.0, 768),
    ("EPYC 7742", "epyc-7742 epyc-rome", "rome", 64, 2.25, 512),
    ("EPYC 7763", "epyc-7763 epyc-milan", "milan", 64, 2.45, 512),
    ("EPYC 9654", "epyc-9654 epyc-genoa", "genoa", 96, 2.4, 768),
    ("EPYC 9755", "epyc-9755 epyc-turin", "turin", 128, 2.7, 768),
    ("Graviton3", "c7g", "graviton3", 64, 2.6, 128),
    ("Graviton4", "r8g", "graviton4", 96, 2.8, 768),
]


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
    rates = dict(zip(("float64", "float32", "bfloat16", "int8"), row[:4]))
    peaks = {dtype: rate * cores * ghz * GIGA for dtype, rate in rates.items() if rate}
    title = name or f"{generation.title()}, {cores} cores"
    return Hardware(title, "cpu", peaks, row[4] * GIGA, memory_bytes, row[5], overhead_ns=3000.0)


def _table() -> dict[str, Hardware]:
    found: dict[str, Hardware] = {}
    for class_, rows in (("gpu", _GPUS), ("accelerator", _ACCELERATORS)):
        for name, aliases, rates, bandwidth, memory, source in rows:
            peaks = {dtype: rate * TERA for dtype, rate in zip(COLUMNS, rates) if rate}
            made = Hardware(
                name,
                class_,
                peaks,
                bandwidth * GIGA,
                int(memory * GIGA),
                source,
                aliases=tuple(aliases.split()),
            )
            found[_key(name)] = made
    for name, aliases, generation, cores, ghz, memory in _CPUS:
        made = cpu(generation, cores=cores, ghz=ghz, memory_bytes=int(memory * GIGA), name=name)
        found[_key(name)] = made
        _ALIASES.update({_key(alias): _key(name) for alias in aliases.split()})
    for made in found.values():
        _ALIASES.update({_key(alias): _key(made.name) for alias in made.aliases})
    return found


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower().replace("nvidia", "").replace("amd", ""))


USUAL_WORDS = r"nvidia|tesla|geforce|quadro|amd|instinct|intel|r|tm|cpu|gpu|sxm\d?|pcie|hbm\d?e?|\d+gb"


_ALIASES: dict[str, str] = {}
_KNOWN: dict[str, Hardware] = _table()


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
    found = _KNOWN.get(_ALIASES.get(key, key)) or _as_a_driver_says(name)
    if found is None:
        raise _unknown(name)
    return found


class Identity(NamedTuple):
    """What tells devices apart in a name: the model, the gigabytes if they are in it, whether it is a PCIe card."""

    model: str
    gigabytes: int | None
    pcie: bool


def _identity(name: str) -> Identity:
    """A name as drivers give it taken apart: ``"NVIDIA A100-SXM4-80GB"`` is an a100 of 80."""
    words = re.findall(r"[a-z0-9+]+", name.lower())
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    model = "".join(word for word in words if not re.fullmatch(USUAL_WORDS, word))
    return Identity(model, sizes[0] if sizes else None, "pcie" in words)


def _as_a_driver_says(name: str) -> Hardware | None:
    """The one profile that a driver's name for a device can mean; what it does not say is taken for the usual form."""
    asked = _identity(name)
    found = []
    for key, profile in _KNOWN.items():
        known = _identity(profile.name)
        if asked.model == known.model and asked.gigabytes in (
            None,
            known.gigabytes,
            round(profile.memory_bytes / GIGA),
        ):
            found.append((known.pcie == asked.pcie, _ALIASES.get(asked.model) == key, profile))
    best = max(found, key=lambda one: one[:2], default=None)
    return best[2] if best and (best[0] or not asked.pcie) else None


def _unknown(name: str) -> Exception:
    """The error for an unknown name; names are compared by what identifies a device, not by what a vendor adds."""
    import difflib

    from torch_vis.errors import NoMatch

    titles = {key: known.name for key, known in _KNOWN.items()}
    titles.update({alias: _KNOWN[key].name for alias, key in _ALIASES.items() if key in _KNOWN})
    near = difflib.get_close_matches(_key(name), titles, n=6, cutoff=0.55)
    names = list(dict.fromkeys(titles[key] for key in near))[:3]
    if not names:
        return no_match("hardware", name, known_hardware())
    return NoMatch(f"no hardware {name!r}; did you mean {' or '.join(map(repr, names))}?")


def register_hardware(profile: Hardware) -> Hardware:
    """Make a machine of one's own known by its name; a profile that is there already is not replaced.

    >>> import torch_vis as tv
    >>> card = tv.Hardware("My card 7", "gpu", {"float32": 10e12}, 500e9, 16 * 10**9, "measured")
    >>> if "My card 7" not in tv.known_hardware():
    ...     _ = tv.register_hardware(card)
    >>> "My card 7" in tv.known_hardware()
    True
    """
    if not isinstance(profile, Hardware):
        raise UsageError(f"register_hardware takes a Hardware, not {type(profile).__name__}")
    if _key(profile.name) in _KNOWN:
        raise UsageError(f"there is a profile {_KNOWN[_key(profile.name)].name!r} already; use another name")
    _KNOWN[_key(profile.name)] = profile
    _ALIASES.update({_key(alias): _key(profile.name) for alias in profile.aliases})
    return profile


def known_hardware() -> tuple[str, ...]:
    """The names that have a profile.

    >>> import torch_vis as tv
    >>> "H200" in tv.known_hardware()
    True
    """
    return tuple(profile.name for profile in _KNOWN.values())
