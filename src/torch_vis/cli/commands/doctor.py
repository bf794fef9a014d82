"""Say what this installation can do: versions, the extras that are there, and the pip line for those that are not.

The exit code is 1 if torch or numpy is missing or too old; a missing extra is no fault.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from importlib import metadata
from typing import Any

from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    ("what is there and what is missing", "torch-vis doctor"),
    ("for a bug report", "torch-vis doctor --json"),
)
NEEDED = {"torch": "2.11", "numpy": ""}
OLDEST_PYTHON = (3, 10)
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {  # the packages of each extra, and what it is for
    "graphviz": (("graphviz",), "figures laid out by Graphviz"),
    "matplotlib": (("matplotlib",), "figures; .png and .pdf files"),
    "networkx": (("networkx",), "t.to_networkx()"),
    "onnx": (("onnx",), ".onnx files for Netron"),
    "onnx-export": (("onnx", "onnxruntime", "onnxscript"), "captures through ONNX"),
    "pandas": (("pandas",), "t.to_pandas()"),
    "plotly": (("plotly",), "figures to zoom into"),
    "rich": (("rich",), "colour in the terminal"),
    "safetensors": (("safetensors",), ".safetensors files in the explorer"),
    "stablehlo": (("jax", "torchax"), "captures through StableHLO"),
    "tui": (("textual",), "torch-vis explore"),
    "zoo": (("timm", "transformers"), "--timm and --hf"),
}  # fmt: skip
PROGRAMS = {"dot": "Graphviz itself, for the graphviz extra"}


def add_options(parser: Parser) -> None:
    """It has none of its own."""


def run(options: Any, out: Output) -> int:
    """Look, and print what was found."""
    result = examine()
    out.give(result, _text(result))
    return int(not result["ok"])


def examine() -> dict[str, Any]:
    """What is installed, as plain data."""
    from torch_vis import __version__

    faults = []
    if sys.version_info[:2] < OLDEST_PYTHON:
        faults.append(f"Python {platform.python_version()} is older than {'.'.join(map(str, OLDEST_PYTHON))}")
    packages = {name: version(name) for name in NEEDED}
    for name, least in NEEDED.items():
        if packages[name] is None:
            faults.append(f"{name} is not installed; run: pip install {name}")
        elif least and _numbers(packages[name] or "") < _numbers(least):
            faults.append(f"{name} {packages[name]} is older than {least}; run: pip install -U {name}")
    extras = {name: _extra(name) for name in EXTRAS}
    missing = [name for name, row in extras.items() if row["missing"]]
    return {
        "ok": not faults,
        "torch_vis": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        **packages,
        "devices": _devices(),
        "extras": extras,
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "faults": faults,
        "pip": f"pip install 'torch-vis[{','.join(missing)}]'" if missing else None,
    }


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra(name: str) -> dict[str, Any]:
    packages, purpose = EXTRAS[name]
    versions = {package: version(package) for package in packages}
    missing = [package for package, result in versions.items() if result is None]
    return {"for": purpose, "versions": versions, "missing": missing}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def _devices() -> list[str] | None:
    """What torch can compute on, or None if it cannot be imported."""
    try:
        import torch
    except Exception:  # a broken installation raises anything: a missing library, a wrong build
        return None
    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _text(found: dict[str, Any]) -> str:
    devices = ", ".join(found["devices"]) if found["devices"] else "torch cannot be imported"
    rows = [(name, found[name] or "missing") for name in ("torch_vis", "python", *NEEDED)]
    lines = [f"{name:12}{value}" for name, value in rows] + [f"{'devices':12}{devices}", "", "extras"]
    for name, row in found["extras"].items():
        have = ", ".join(f"{package} {number}" for package, number in row["versions"].items() if number)
        lacks = f"missing: {', '.join(row['missing'])}" if row["missing"] else ""
        lines.append(_line(not row["missing"], name, "; ".join(filter(None, [have, lacks])), row["for"]))
    for name, purpose in PROGRAMS.items():
        path = found["programs"][name]
        lines.append(_line(path is not None, name, path or "not on PATH", purpose))
    lines += ["", *found["faults"]] if found["faults"] else []
    lines += ["", f"for what is missing: {found['pip']}"] if found["pip"] else []
    return "\n".join(line.rstrip() for line in lines)


def _line(there: bool, name: str, what: str, purpose: str) -> str:
    return f"  {'✓' if there else '·'} {name:12}{what:60}{purpose}"
