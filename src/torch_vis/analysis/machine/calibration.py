"""A machine as it was measured: data that can be saved and used elsewhere, kept here, and which machine is meant."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torch_vis._deprecated import Renamed
from torch_vis.analysis.machine import host_model as host_time
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.analysis.machine.host_model import HostCosts
from torch_vis.analysis.machine.kernel_model import ARITHMETIC, NOISE, KernelEstimate, KernelModel, Samples
from torch_vis.errors import CorruptFile, FileError, NewerFile, NotOurFile, UsageError, no_match, shortened
from torch_vis.graph.io.atomic import PathLike, read_whole, write_text
from torch_vis.graph.text import inert
from torch_vis.graph.types import Floats
from torch_vis.ops.families import KINDS, REAL_DTYPES

FORMAT, VERSION = "torch_vis calibration", 5
# the source of figures that no datasheet gives
MEASURED = "measured here"
# quiet machines have a noise of 0.03 to 0.3, and one with two busy loops beside it 0.7
DISTURBED = 0.4
# more of anything, whatever its unit, was not measured
MOST = 1e24
BUSY = "calibrate(again=True) when nothing else runs"
WAS_BUSY = f"the machine was busy with something else while it was measured: {BUSY}"


# ---------------------------------------------------------------- how ranks talk

# whose times a kind takes that has none
LIKE = {
    "recv": "send",
    "reduce": "all_reduce",
    "gather": "all_gather",
    "scatter": "broadcast",
    "barrier": "all_reduce",
}


class RankLinks(NamedTuple):
    """What was measured among the ranks of one job."""

    ranks: int
    """How many there were."""
    times: dict[str, list[tuple[int, float]]]
    """By kind, messages from small to large: their bytes, and nanoseconds from when the last rank came."""
    hidden: float
    """Of the time that bytes are under way, the share that computing beside it does not feel."""
    issue_ns: dict[str, float]
    """Nanoseconds of Python around each collective, by what starts it: see ``starter``."""

    @property
    def bytes_per_second(self) -> float:
        """What one rank sends per second in the largest messages."""
        rates = [rows[-1][0] / rows[-1][1] * 1e9 for rows in self.times.values() if rows and rows[-1][1] > 0]
        return min(rates, default=1.0)

    def time_ns(self, kind: str, size_bytes: float, members: int) -> float:
        """How long a collective or message takes once all its ranks have come.

        Between two measured sizes it is on the line between them, beyond the largest it goes on like there. Of another
        number of ranks, the least that it takes grows with the hops of a ring, and the rest with what a rank sends.

        >>> links = RankLinks(2, {"all_gather": [(0, 100.0), (1000, 300.0)]}, 1.0, {})
        >>> links.time_ns("all_gather", 500, 2), links.time_ns("all_gather", 2000, 2)
        (200.0, 500.0)
        >>> links.time_ns("all_gather", 500, 4)
        450.0
        """
        rows = (
            self.times.get(kind)
            or self.times.get(LIKE.get(kind, ""))
            or max(self.times.values(), key=lambda rows: rows[-1][1] if rows else 0.0, default=[])
        )
        if not rows:
            return 0.0
        sizes, times = np.array(rows, dtype=np.float64).T
        base = float(times[0])
        if len(rows) == 1 or size_bytes <= sizes[0]:
            rest = 0.0
        elif size_bytes <= sizes[-1]:
            rest = float(np.interp(size_bytes, sizes, times)) - base
        else:
            slope = float(times[-1] - times[-2]) / max(float(sizes[-1] - sizes[-2]), 1.0)
            rest = float(times[-1]) - base + max(slope, 0.0) * (size_bytes - float(sizes[-1]))
        if kind in ("send", "recv") or members == self.ranks or self.ranks < 2:
            return base + rest
        hops = (members - 1) / (self.ranks - 1)
        share = ((members - 1) / max(members, 1)) / ((self.ranks - 1) / self.ranks)
        return base * hops + rest * share

    def around_ns(self, op: str) -> float:
        """What Python takes around a collective, by the name of its operator."""
        return self.issue_ns.get(starter(op), 0.0)

    def to_plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            **self._asdict(),
            "times": {kind: [list(row) for row in rows] for kind, rows in self.times.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RankLinks:
        """From JSON data."""
        return cls(
            int(plain["ranks"]),
            {str(k): [(int(size), float(time)) for size, time in rows] for k, rows in plain["times"].items()},
            float(plain["hidden"]),
            {str(name): float(time) for name, time in plain["issue_ns"].items()},
        )


def starter(op: str) -> str:
    """What usually starts a collective, by its operator: DTensor, a sharded model, a pipeline, or anything else.

    >>> starter("_c10d_functional::all_reduce"), starter("c10d::_allgather_base_"), starter("c10d::allreduce_")
    ('functional', 'sharded', 'plain')
    >>> starter("c10d::recv_")
    'message'
    """
    if op.startswith("_c10d_functional"):
        return "functional"
    if op.partition(".")[0] in ("c10d::send", "c10d::recv_", "c10d::recv_any_source_"):
        return "message"
    return (
        "sharded"
        if op.partition(".")[0] in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_")
        else "plain"
    )


def undisturbed(times: Any) -> Any:
    """Of several rounds, along the first axis, one that little else disturbed."""
    return np.quantile(np.asarray(times, dtype=np.float64), 0.1, axis=0)


# ---------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Calibration(Renamed):
    """A machine as it was measured: peaks, bandwidths, single operations, and what its host takes to issue them.

    ``device`` is the name of what computes, ``class_`` is ``"gpu"`` or ``"cpu"``, ``circumstances`` are the versions
    and settings that it holds for. ``copies`` are ``(bytes, bytes per second)`` of copies from small to large, so that
    caches show. ``noise`` is how much the logarithm of one program's time varies from run to run. ``links`` is how the
    ranks of a job talk to each other, where it was measured in one.
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
    links: RankLinks | None = field(default=None, repr=False)

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
        write_text(path, json.dumps(self.to_dict(), separators=(",", ":")))

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
            **({} if self.links is None else {"links": self.links.to_plain()}),
        }

    @property
    def is_disturbed(self) -> bool:
        """Whether so much else ran during the measurement that it says little about the machine."""
        return self.noise > DISTURBED

    def __str__(self) -> str:
        rates = ", ".join(f"{dtype} {peak / 1e12:.3g} TFLOP/s" for dtype, peak in self.peaks.items())
        result = (
            f"{self.device}: {rates}; {self.bandwidth / 1e9:.3g} GB/s; "
            f"{self.host.unit_ns / 1e3:.1f} µs per small operation; {len(self.samples.op):,} operations measured"
        )
        if self.links is not None:
            result += (
                f"; {self.links.ranks} ranks at {self.links.bytes_per_second / 1e9:.3g} GB/s, "
                f"{self.links.hidden:.0%} of it hidden by computing"
            )
        return inert(result) + ("; the machine was busy: " + BUSY if self.is_disturbed else "")


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
    except (ValueError, RecursionError) as error:
        raise NotOurFile(f"{path} is not a calibration: it is no JSON") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise NotOurFile(f"{path} is not a calibration that torch_vis wrote")
    version = plain.get("version", 0)
    if type(version) is not int:
        raise CorruptFile(f"{path} is damaged: its version is no number")
    if version > VERSION:
        raise NewerFile(f"{path} was written by a later version of torch_vis; update to read it")
    if version < VERSION:
        raise NotOurFile(f"{path} is a calibration of an earlier version of torch_vis; calibrate again")
    try:
        calibration = _from_plain(plain)
        _check_figures(calibration)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise CorruptFile(f"{path} is damaged: {shortened(repr(error))}") from error
    return calibration


def _check_figures(calibration: Calibration) -> None:
    """Raise for figures that no machine has: those that times are divided by or taken the logarithm of are above 0."""
    samples, host = calibration.samples, calibration.host
    sizes, rates = zip(*calibration.copies) if calibration.copies else ((), ())
    if calibration.class_ not in ("gpu", "cpu"):
        raise ValueError("it is of neither a GPU nor a CPU")
    positive: dict[str, list[Any]] = {
        "peaks": [*calibration.peaks.values()],
        "copies": [*sizes, *rates],
        "times": [calibration.floor_ns, host.unit_ns, host.swept, *samples.time_ns.tolist()],
    }
    others: dict[str, list[Any]] = {
        "memory": [calibration.memory_bytes],
        "gap": [calibration.gap_ns],
        "noise": [calibration.noise, host.error],
        "work": [*samples.flops.tolist(), *samples.moved.tolist(), *samples.kernels.tolist()],
        "sizes": [abs(size) for size in samples.sizes.ravel().tolist()],
        "times of the host": [abs(cost) for cost in host.terms.values()],
        "times to issue": [cost for cost in samples.host_ns.tolist() if not math.isnan(cost)],
    }
    for name, figures in positive.items():
        if not all(0 < figure < MOST for figure in figures):
            raise ValueError(f"{name} that are not above 0")
    for name, figures in others.items():
        if not all(0 <= figure < MOST for figure in figures):
            raise ValueError(f"{name} that no machine has")


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
        RankLinks.from_plain(plain["links"]) if plain.get("links") else None,
    )


# Which machine is meant


def machine(
    hardware: Any = None, calibration: Any = None, *, devices: Iterable[str] = ()
) -> Calibration | Hardware:
    """The machine asked for; without a name, this one as it was calibrated before. Nothing is measured here.

    ``devices`` are those that a trace is from: they say which of this machine's devices is meant.
    """
    if hardware is not None and calibration is not None:
        raise UsageError("name hardware or give a calibration, not both")
    if isinstance(calibration, (Calibration, Hardware)):
        return calibration
    if calibration is not None:
        raise UsageError(
            f"calibration is what measure.calibrate() or hardware.load() gave, not {type(calibration).__name__}"
        )
    if hardware is not None:
        return hardware if isinstance(hardware, (Calibration, Hardware)) else find_hardware(hardware)
    return this_machine(devices)


def this_machine(devices: Iterable[str] = ()) -> Calibration:
    """This machine as it was calibrated before; raises with what to do where it was not."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "there is no torch here, and so no calibration: name hardware, e.g. hardware='H100 SXM'"
        ) from None

    names = [str(device) for device in devices or ()]
    device = None
    if names:
        on_gpu = any(name.startswith("cuda") for name in names) and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
    calibration = cached(device)
    if calibration is None:
        raise UsageError(
            "this machine has not been calibrated: run tv.measure.calibrate() once (under a minute), "
            "or name hardware, e.g. hardware='H100 SXM'"
        )
    return calibration


def profile(machine: Calibration | Hardware) -> Hardware:
    """The roofs of a machine."""
    return machine.hardware if isinstance(machine, Calibration) else machine


# Calibrations that are kept


def cached(device: str | None = None) -> Calibration | None:
    """The calibration that is kept for this machine, or None; nothing is run."""
    key = circumstances(device_to_calibrate(device))
    return kept_calibration(cache_path(key), key)


def cache_path(key: dict[str, Any]) -> Path:
    """Where the calibration for some circumstances is kept: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:16]
    return Path(base) / "torch_vis" / f"calibration-{name}.json"


def kept_calibration(path: Path, key: dict[str, Any]) -> Calibration | None:
    """The calibration in a file; None where the file is missing, damaged or of other circumstances."""
    if not path.exists():
        return None
    try:
        calibration = load(path)
    except FileError:
        # damaged or of another version: it is measured anew
        return None
    return calibration if calibration.circumstances == key else None


def circumstances(device: str) -> dict[str, Any]:
    """What a calibration holds for: the device, the host, versions, threads, precision settings."""
    import torch

    key: dict[str, Any] = {
        "device": device_name(device),
        "host": processor_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.startswith("cuda"):
        key["matmul_precision"] = torch.get_float32_matmul_precision()
        key["cudnn_tf32"] = bool(torch.backends.cudnn.allow_tf32)
        key["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
    return key


def device_name(device: str) -> str:
    """The name of a device as its driver gives it."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor_name()


def processor_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        # not Linux
        pass
    return platform.processor() or platform.machine()


def device_to_calibrate(device: str | None) -> str:
    """The device asked for: ``cuda`` where there is one, or else ``cpu``; raises where it cannot be calibrated."""
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise no_match("device to calibrate", str(device), ["cpu", "cuda"])
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device here; calibrate on a machine that has one and load its file"
        )
    return str(device)
