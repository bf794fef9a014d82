"""What a calibration found out about a machine, as data that can be saved and used on another one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from torch_vis._deprecated import Renamed
from torch_vis.analysis.machine import host_model as host_time
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.host_model import HostCosts
from torch_vis.analysis.machine.kernel_model import ARITHMETIC, NOISE, KernelEstimate, KernelModel, Samples
from torch_vis.errors import CorruptFile, NewerFile, NotOurFile, UsageError
from torch_vis.graph.io.atomic import PathLike, read_whole, replacing
from torch_vis.graph.types import Floats
from torch_vis.ops.families import KINDS, REAL_DTYPES

FORMAT, VERSION = "torch_vis calibration", 5
# the source of figures that no datasheet gives
MEASURED = "measured here"
# quiet machines have a noise of 0.03 to 0.3, and one with two busy loops beside it 0.7
DISTURBED = 0.4
BUSY = "calibrate(again=True) when nothing else runs"
WAS_BUSY = f"the machine was busy with something else while it was measured: {BUSY}"


@dataclass(frozen=True)
class Calibration(Renamed):
    """A machine as it was measured: peaks, bandwidths, single operations, and what its host takes to issue them.

    ``device`` is the name of what computes, ``class_`` is ``"gpu"`` or ``"cpu"``, ``circumstances`` are the versions
    and settings that it holds for. ``copies`` are ``(bytes, bytes per second)`` of copies from small to large, so that
    caches show. ``noise`` is how much the logarithm of one program's time varies from run to run.
    """

    device: str
    class_: str
    circumstances: dict[str, Any]
    peaks: dict[str, float]
    copies: list[tuple[int, float]]
    memory_bytes: int
    floor_ns: float
    gap_ns: float
    samples: Samples = field(repr=False)
    host: HostCosts = field(repr=False)
    noise: float = 0.05

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the largest copies: what memory gives, caches left out."""
        return self.copies[-1][1] if self.copies else math.inf

    @property
    def hardware(self) -> Hardware:
        """The same as a profile of what the machine reached at most, by whatever reached it."""
        fastest = max((rate for _, rate in self.copies), default=1.0)
        bandwidth = self.bandwidth if math.isfinite(self.bandwidth) else fastest
        return Hardware(
            self.device,
            self.class_,
            self._best_peaks(),
            bandwidth,
            self.memory_bytes,
            MEASURED,
            overhead_ns=self.floor_ns if self.class_ == "gpu" else self.host.unit_ns,
            disturbed=self.is_disturbed,
        )

    def _best_peaks(self) -> dict[str, float]:
        """FLOP/s of the products that peaks are measured by, or of any other operation that did better."""
        rates = np.nan_to_num(self.samples.flops) / np.maximum(self.samples.time_ns, 1.0) * 1e9
        arithmetic = np.isin(self.samples.kind, [KINDS.index(name) for name in ARITHMETIC])
        best = dict(self.peaks)
        for code in np.unique(self.samples.dtype).tolist():
            reached = rates[arithmetic & (self.samples.dtype == code)]
            name = REAL_DTYPES[code]
            # on a GPU a product in float32 may be computed in tf32, which has a peak of its own
            if len(reached) and name in best and self.class_ == "cpu":
                best[name] = max(best[name], float(reached.max()))
        return best

    @cached_property
    def kernels(self) -> KernelModel:
        """The estimator of kernel times."""
        noise = NOISE.get(self.class_, max(NOISE.values()))
        return KernelModel(
            self.samples,
            floor_ns=self.floor_ns,
            bandwidth=self.bandwidth,
            peaks=self.peaks,
            noise=noise,
            bias_apart=self.class_ == "gpu",
        )

    def device_ns(self, estimate: KernelEstimate) -> Floats:
        """What the device takes: on a GPU with the gap before each kernel, on a CPU without the call itself."""
        if self.class_ == "gpu":
            return np.asarray(estimate.time_ns + self.gap_ns * estimate.kernels)
        worked = np.maximum(estimate.time_ns - self.floor_ns, 0.03 * estimate.time_ns)
        return np.asarray(np.where(estimate.time_ns > 0, worked, 0.0))

    def at_pace(self, unit_ns: float) -> Calibration:
        """The same GPU while its host takes ``unit_ns`` for one small operation, and for all else accordingly.

        ``host.unit_ns`` is what it took when it was measured. A host that is shared, or saves power, has no one pace.
        Where the host itself computes, its kernels change by other factors than its small operations: calibrate again.

        >>> import torch_vis as tv
        >>> machine = tv.hardware.load("h200.json")  # doctest: +SKIP
        >>> busy = machine.at_pace(1.5 * machine.host.unit_ns)  # doctest: +SKIP
        >>> t.latency(calibration=busy)  # doctest: +SKIP
        """
        if not isinstance(unit_ns, (int, float)) or not 0 < unit_ns < math.inf:
            raise UsageError(f"the time of a small operation must be above 0 ns, not {unit_ns!r}")
        if self.class_ != "gpu":
            raise UsageError(
                f"{self.device} computes by itself, and its kernels do not follow the pace of small operations; "
                "calibrate(again=True) measures it as it is now"
            )
        slower = unit_ns / self.host.unit_ns
        samples = self.samples._replace(host_ns=self.samples.host_ns * slower)
        terms = {name: cost * slower for name, cost in self.host.terms.items()}
        return replace(self, samples=samples, host=self.host._replace(unit_ns=unit_ns, terms=terms))

    def save(self, path: PathLike) -> None:
        """Write it, to be read by ``tv.hardware.load`` here or on another machine."""
        with replacing(path) as file:
            file.write(json.dumps(self.to_dict(), separators=(",", ":")).encode())

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "class": self.class_,
            "circumstances": self.circumstances,
            "peaks": self.peaks,
            "copies": [list(copy) for copy in self.copies],
            "memory_bytes": self.memory_bytes,
            "floor_ns": self.floor_ns,
            "gap_ns": self.gap_ns,
            "noise": self.noise,
            "kinds": list(KINDS),
            "dtypes": list(REAL_DTYPES),
            "samples": self.samples.to_plain(),
            "host": host_time.to_plain(self.host),
        }

    @property
    def is_disturbed(self) -> bool:
        """Whether so much else ran while this was measured that it hardly tells what the machine does."""
        return self.noise > DISTURBED

    def __str__(self) -> str:
        rates = ", ".join(f"{dtype} {peak / 1e12:.3g} TFLOP/s" for dtype, peak in self.peaks.items())
        result = (
            f"{self.device}: {rates}; {self.bandwidth / 1e9:.3g} GB/s; "
            f"{self.host.unit_ns / 1e3:.1f} µs per small operation; {len(self.samples.op):,} operations measured"
        )
        return result + ("; the machine was busy: " + BUSY if self.is_disturbed else "")


def load(path: PathLike) -> Calibration:
    """Read a calibration that ``save`` wrote, here or on another machine.

    >>> import torch_vis as tv
    >>> try:
    ...     tv.hardware.load("no such file")
    ... except tv.errors.FileError as error:
    ...     print(error)
    cannot read no such file: there is no such file
    """
    content = read_whole(path)
    try:
        plain = json.loads(content)
    except ValueError as error:
        raise NotOurFile(f"{path} is not a calibration: it is no JSON") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise NotOurFile(f"{path} is not a calibration that torch_vis wrote")
    if plain.get("version", 0) > VERSION:
        raise NewerFile(f"{path} was written by a later version of torch_vis; update to read it")
    if plain.get("version", 0) < VERSION:
        raise NotOurFile(f"{path} is a calibration of an earlier version of torch_vis; calibrate again")
    try:
        return _from_plain(plain)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptFile(f"{path} is damaged: {error!r}") from error


def _from_plain(plain: dict[str, Any]) -> Calibration:
    samples = Samples.from_plain(plain["samples"])
    # codes are places in tables that later versions may extend
    kinds = np.array([KINDS.index(name) for name in plain["kinds"]], dtype=np.int8)
    dtypes = np.array([REAL_DTYPES.index(name) for name in plain["dtypes"]], dtype=np.int8)
    samples = samples._replace(kind=kinds[samples.kind], dtype=dtypes[samples.dtype])
    return Calibration(
        str(plain["device"]),
        str(plain["class"]),
        dict(plain["circumstances"]),
        {str(name): float(peak) for name, peak in plain["peaks"].items()},
        [(int(size), float(rate)) for size, rate in plain["copies"]],
        int(plain["memory_bytes"]),
        float(plain["floor_ns"]),
        float(plain["gap_ns"]),
        samples,
        host_time.from_plain(plain["host"]),
        float(plain["noise"]),
    )
