"""Say what this installation can do: versions, the extras that are there, and the pip line for those that are not.

What is ticked was imported, in a process of its own; what is installed and cannot be imported is marked with the error.
The exit code is 1 if torch or numpy is missing, too old or broken; a missing extra is no fault.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
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
LIBRARIES = {"torchvision": "--torchvision, and some models of timm and transformers"}
PROGRAMS = {"dot": "Graphviz itself, for the graphviz extra"}
LIMIT_S = 60  # that an import may take
# Imports what is named and says of each how it went; one that takes too long or crashes ends the process there. torch's
# devices are asked for in the same place: a driver may crash as well.
IMPORTS = """
import faulthandler, importlib, json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints while it is imported is none of the answer
names, limit, sys.path[:] = json.loads(sys.argv[1])
def say(**row):
    print(json.dumps(row), file=out, flush=True)
for name in names:
    faulthandler.dump_traceback_later(limit, exit=True)
    try:
        if name == "torchax":
            from torch_vis.interfaces.stablehlo import import_torchax
            import_torchax()
        else:
            importlib.import_module(name)
        if name == "torch":
            import torch
            cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
            mps = ["mps"] if torch.backends.mps.is_available() else []
            say(devices=["cpu", *cuda, *mps])
    except BaseException as error:
        lines = str(error).strip().splitlines()
        say(name=name, error=f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)
    else:
        say(name=name, error=None)
"""


def add_options(parser: Parser) -> None:
    """It has none of its own."""


def run(options: Any, out: Output) -> int:
    """Look, and print what was found."""
    out.say("importing what is installed …")
    result = doctor()
    out.give(result, str(result))
    return int(not result["ok"])


class Installation(dict[str, Any]):
    """What is installed, as plain data that prints as ``torch-vis doctor`` does."""

    def __str__(self) -> str:
        return _text(self)

    __repr__ = __str__


def doctor() -> dict[str, Any]:
    """What is installed: versions, devices, extras, and the pip line for missing ones.

    What is ticked was imported, in a process of its own. It prints as ``torch-vis doctor`` does, and is a dict.

    >>> import torch_vis as tv
    >>> found = tv.doctor()
    >>> found["extras"]["pandas"]["for"], str(found).splitlines()[0] == f"torch_vis   {tv.__version__}"
    ('t.to_pandas()', True)
    """
    return Installation(examine())


def examine() -> dict[str, Any]:
    """What is installed, as plain data."""
    from torch_vis import __version__

    faults = []
    if sys.version_info[:2] < OLDEST_PYTHON:
        faults.append(f"Python {platform.python_version()} is older than {'.'.join(map(str, OLDEST_PYTHON))}")
    packages = {name: version(name) for name in NEEDED}
    names = {*NEEDED, *LIBRARIES, *(package for row in EXTRAS.values() for package in row[0])}
    broken, devices = imported(sorted((name for name in names if version(name)), key=_torch_first))
    for name, least in NEEDED.items():
        if packages[name] is None:
            faults.append(f"{name} is not installed; run: pip install {name}")
        elif name in broken:
            faults.append(f"{name} {packages[name]} cannot be imported: {broken[name]}")
        elif least and _numbers(packages[name] or "") < _numbers(least):
            faults.append(f"{name} {packages[name]} is older than {least}; run: pip install -U {name}")
    extras = {name: _row(packages, purpose, broken) for name, (packages, purpose) in EXTRAS.items()}
    missing = [name for name, row in extras.items() if row["missing"]]
    return {
        "ok": not faults,
        "torch_vis": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        **packages,
        "devices": devices,
        "extras": extras,
        "libraries": {name: _row((name,), purpose, broken) for name, purpose in LIBRARIES.items()},
        "programs": {name: _program(name) for name in PROGRAMS},
        "faults": faults,
        "pip": f"pip install 'torch-vis[{','.join(missing)}]'" if missing else None,
    }


def _torch_first(name: str) -> tuple[bool, str]:
    """A sort key by which torch is imported first, so that its time is not charged to a package that needs it."""
    return name != "torch", name


def imported(names: Iterable[str]) -> tuple[dict[str, str], list[str] | None]:
    """Of the packages that cannot be imported the reason, and what torch computes on.

    >>> imported(["json", "no_such_package"])
    ({'no_such_package': "ModuleNotFoundError: No module named 'no_such_package'"}, None)
    """
    waiting = [*names]
    errors: dict[str, str] = {}
    devices: list[str] | None = None
    while waiting:
        rows, end = _import_all(waiting)
        done = {row["name"]: row["error"] for row in rows if "error" in row}
        errors |= {name: error for name, error in done.items() if error}
        devices = next((row["devices"] for row in rows if "devices" in row), devices)
        waiting = [name for name in waiting if name not in done]
        if waiting:  # the process ended at the first of these
            errors[waiting.pop(0)] = end
    return errors, devices


def _import_all(names: list[str]) -> tuple[list[dict[str, Any]], str]:
    """The output of a process that imports packages, and how it ended if it did not reach the last."""
    command = [sys.executable, "-c", IMPORTS, json.dumps([names, LIMIT_S, sys.path])]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    code = done.returncode
    if b"\nTimeout (" in b"\n" + done.stderr:
        end = f"it was not imported within {LIMIT_S} s"
    else:
        end = (
            f"the process ended with code {code}" if code >= 0 else f"the process crashed ({_signal(-code)})"
        )
    return [json.loads(line) for line in done.stdout.decode().splitlines()], end


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _row(packages: Iterable[str], purpose: str, broken: dict[str, str]) -> dict[str, Any]:
    versions = {package: version(package) for package in packages}
    missing = [package for package, result in versions.items() if result is None]
    return {
        "for": purpose,
        "versions": versions,
        "missing": missing,
        "broken": {package: broken[package] for package in versions if package in broken},
    }


def _program(name: str) -> str | None:
    """The path of a program that runs."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "-V"], check=False, capture_output=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else path


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def _text(facts: dict[str, Any]) -> str:
    devices = ", ".join(facts["devices"]) if facts["devices"] else "torch cannot be imported"
    rows = [(name, facts[name] or "missing") for name in ("torch_vis", "python", *NEEDED)]
    lines = [f"{name:12}{value}" for name, value in rows] + [f"{'devices':12}{devices}", "", "extras"]
    for name, row in (facts["extras"] | facts["libraries"]).items():
        have = ", ".join(f"{package} {number}" for package, number in row["versions"].items() if number)
        lacks = f"missing: {', '.join(row['missing'])}" if row["missing"] else ""
        mark = "✗" if row["broken"] else "·" if row["missing"] else "✓"
        lines.append(_line(mark, name, "; ".join(filter(None, [have, lacks])), row["for"]))
        lines += [f"{'':16}{package} cannot be imported: {error}" for package, error in row["broken"].items()]
    for name, purpose in PROGRAMS.items():
        path = facts["programs"][name]
        lines.append(_line("✓" if path else "·", name, path or "not on PATH, or it does not run", purpose))
    lines += ["", *facts["faults"]] if facts["faults"] else []
    lines += ["", f"for what is missing: {facts['pip']}"] if facts["pip"] else []
    return "\n".join(line.rstrip() for line in lines)


def _line(mark: str, name: str, what: str, purpose: str) -> str:
    return f"  {mark} {name:12}{what:60}{purpose}"
