"""Build the wheel and the source distribution, and try them as a user would: in environments that have nothing else.

    .venv/bin/python tools/distribution.py             build both into dist/ and try the wheel
    .venv/bin/python tools/distribution.py --build     build only
    .venv/bin/python tools/distribution.py --python python3.12 --python python3.13

Tried are: torch and numpy alone, each extra alone beside them, all extras; the wheel that the source distribution
gives; and a user's mypy and pyright on a program that imports the package. Every trial is a line, and the exit code is
1 if one failed. A torch that is not on this machine is fetched, in its pinned version.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DIST = ROOT / "dist"
# Extras that only set up others' environments, and need no trial of their own.
FOR_DEVELOPERS = {"dev", "zoo", "loops", "bench", "docs", "all", "stablehlo"}
NEEDED = (
    "torch_vis/py.typed",
    "torch_vis/__init__.pyi",
    "torch_vis/views/page/viewer.js",
    "torch_vis/views/page/viewer.css",
    "torch_vis/views/page/world.js",
    "torch_vis/views/page/world.css",
    "torch_vis/analysis/machine/hardware.json",
)

TRIAL = """
import subprocess, sys, torch, torch_vis as tv
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
t = tv.trace(model, torch.randn(3, 4), backward=True)
t.check()
assert "Linear" in str(t) and t.memory().peak_bytes > 0
for name in ("a.tvz", "a.json", "a.html", "a.svg", "a.csv", "a.md", "a.dot", "a.graphml", "a.perfetto.json"):
    t.save(name)
assert tv.compare(tv.load("a.tvz"), t).same
subprocess.run([sys.executable, "-m", "torch_vis", "summary", "a.tvz"], check=True, stdout=subprocess.DEVNULL)
"""
# What an extra is for, tried where it is installed; without it, the same call must name the line that installs it.
USES = {
    "graphviz": "t.figure('graphviz')",
    "matplotlib": "t.save('a.png')",
    "networkx": "t.to_networkx()",
    "onnx": "t.save('a.onnx')",
    "onnx-export": "print(tv.compare_captures(model, torch.randn(3, 4), captures=['onnx']))",
    "pandas": "t.to_pandas()",
    "plotly": "t.figure('plotly')",
    "rich": "import rich",
    "safetensors": "t.run(keep='all', to='a.safetensors')",
    "tui": "import textual; from torch_vis.views.terminal.app import Explorer",
}
# What a user's program asks of what it is given; a type checker is to know each of them.
TYPED = """
import torch
import torch_vis as tv

model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
t: tv.Trace = tv.trace(model, x, backward=True)
peak: int = t.memory().peak_bytes
names: list[str] = [node.op for node in t.graph.nodes]
reveal_type(t.check())
reveal_type(t.graph.nodes[0])
reveal_type(t.graph.nodes[:2])
reveal_type(t.graph.nodes[0].outputs[0].type.shape)
reveal_type(t.time().operators[0].time_ns)
reveal_type(t.health().nan_origin)
reveal_type(t.run(x, replace={"": tv.edit.zero()}))
reveal_type(t.attribute("saliency")["input"])
reveal_type(tv.compare(t, t).differences().same)
with tv.record(model) as block:
    reveal_type(block)
with tv.live(model, keep="") as run:
    reveal_type(run)
with tv.trace_tensor_ids() as tracer:
    reveal_type(tracer)
reveal_type(tv.join("step.r*.tvz").step_time())
reveal_type(tv.extract(model, [x], keep="", to="acts/"))
reveal_type(tv.extract(model, [x], stats={"": tv.stats.Mean()}))
"""
# How checkers write a type that they do not know.
UNKNOWN = re.compile(r"""(?:Revealed type is|Type of .* is) "(?:builtins\.)?(?:Any|Unknown)\"""")


class TrialFailed(Exception):
    """A trial that ended badly; the text is what was said."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", action="store_true", help="build only")
    parser.add_argument("--python", action="append", help="a Python to try with; this one without it")
    options = parser.parse_args(words)
    wheel, source = build()
    for path in (wheel, source):
        print(f"built dist/{path.name} ({path.stat().st_size:,} bytes)", flush=True)
    if options.build:
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for python in options.python or [sys.executable]:
            for name, problem in trials(Path(folder), python, wheel, source):
                failed += problem is not None
                print(
                    f"{'FAILED' if problem else 'ok'}  {Path(python).name}: {name}{problem or ''}", flush=True
                )
    return 1 if failed else 0


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution of this checkout, anew."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    DIST.mkdir()
    hook = "import sys, setuptools.build_meta as hook; folder = sys.argv[1]; "
    hook += "hook.build_sdist(folder); hook.build_wheel(folder)"
    run([sys.executable, "-c", hook, str(DIST)], ROOT)
    wheel, source = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    inside = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in NEEDED if name not in inside]
    foreign = [name for name in inside if not name.startswith(("torch_vis/", "torch_vis-"))]
    if missing or foreign:
        raise TrialFailed(f"the wheel lacks {missing} and has {foreign}")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if not {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "docs/index.md"} <= names:
        raise TrialFailed("the source distribution lacks what builds it or what its README names")
    if any(name.startswith(("tests/", "docs/reference/", "docs/gallery_pages/")) for name in names):
        raise TrialFailed("the source distribution has tests, or pages that are made when the site is built")
    return wheel, source


def trials(folder: Path, python: str, wheel: Path, source: Path) -> Iterator[tuple[str, str | None]]:
    """What was tried with one Python, and what was said where it failed."""
    extras = declared()
    home = folder / Path(python).name
    try:
        environment = bare(home, python, wheel)
    except TrialFailed as failure:
        yield "torch, numpy and the wheel", said(failure)
        return
    yield "torch, numpy and the wheel", attempt(environment, home, TRIAL)
    for name, use in USES.items():
        named = "assert 'pip install' in str(error), error" if name not in ("rich", "tui") else "pass"
        without = f"{TRIAL}\ntry:\n    {use}\nexcept ImportError as error:\n    {named}\n"
        yield f"without [{name}]", attempt(environment, home, without)
    for name in [*sorted(set(extras) - FOR_DEVELOPERS), "all"]:
        beside = home / f"with-{name}"
        try:
            run(
                [
                    str(environment),
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "-c",
                    str(CONSTRAINTS),
                    "--target",
                    str(beside),
                    *requirements(extras, name),
                ],
                home,
            )
        except TrialFailed as failure:
            yield f"with [{name}]", said(failure)
            continue
        uses = "\n".join(USES.values()) if name == "all" else USES.get(name, "")
        uses = "\n".join(
            line for line in uses.split("\n") if "compare_captures" not in line or name == "onnx-export"
        )
        yield f"with [{name}]", attempt(environment, home, f"{TRIAL}\n{uses}\n", beside)
    for checker in ("mypy", "pyright"):
        yield f"typed, for {checker}", typed(environment, home, checker)
    yield "a wheel from the source distribution", rebuilt(environment, home, source)


def declared() -> dict[str, list[str]]:
    """The extras of pyproject.toml and what each asks for; read by the installer's own parser on Python 3.10."""
    try:
        import tomllib
    except ImportError:
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project["optional-dependencies"])


def requirements(extras: dict[str, list[str]], name: str) -> list[str]:
    """What an extra asks for, other extras of ours resolved; torch and numpy are there."""
    found: list[str] = []
    for requirement in extras[name]:
        if requirement.startswith("torch-vis["):
            for inner in requirement.removeprefix("torch-vis[").rstrip("]").split(","):
                found += requirements(extras, inner)
        else:
            found.append(requirement)
    return found


def bare(home: Path, python: str, wheel: Path) -> Path:
    """A new environment with torch, numpy and the wheel; the path of its Python."""
    home.mkdir()
    run([python, "-m", "venv", str(home / "env")], home)
    inside = home / "env" / "bin" / "python"
    run([str(inside), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "torch", "numpy"], home)
    run([str(inside), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), str(wheel)], home)
    return inside


def attempt(python: Path, home: Path, program: str, beside: Path | None = None) -> str | None:
    """Run a program in the environment, away from the checkout; None, or what went wrong."""
    path = home / "trial.py"
    path.write_text((f"import sys; sys.path.append({str(beside)!r})\n" if beside else "") + program)
    try:
        run([str(python), str(path)], home)
    except TrialFailed as failure:
        return said(failure)
    return None


def typed(python: Path, home: Path, checker: str) -> str | None:
    """Whether a user's mypy or pyright finds our types: the program is right, and what it reveals is no Any."""
    beside, path = home / f"with-{checker}", home / "user.py"
    path.write_text(TYPED)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(CONSTRAINTS),
        "--target",
        str(beside),
        checker,
    ]
    start = {
        "mypy": "from mypy.__main__ import console_entry; console_entry()",
        "pyright": "from pyright.cli import entrypoint; entrypoint()",
    }
    options = {
        "mypy": ["--strict", "--python-executable", str(python)],
        "pyright": ["--pythonpath", str(python)],
    }
    try:
        run(pip, home)
        hook = f"import sys; sys.path.append({str(beside)!r}); {start[checker]}"
        answer = run([str(python), "-c", hook, *options[checker], str(path)], home)
    except TrialFailed as failure:
        return said(failure)
    return f"\n{answer}" if not_known(answer) else None


def not_known(answer: str) -> list[str]:
    """The lines in which a checker reveals that it does not know a type; all of them if it did not look."""
    lines = answer.splitlines()
    return [line for line in lines if UNKNOWN.search(line)] if "CheckResult" in answer else lines or [""]


def rebuilt(python: Path, home: Path, source: Path) -> str | None:
    try:
        run([str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "setuptools"], home)
        run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--no-build-isolation",
                "--force-reinstall",
                str(source),
            ],
            home,
        )
    except TrialFailed as failure:
        return said(failure)
    return attempt(python, home, TRIAL)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise TrialFailed((done.stdout + done.stderr).strip())
    return done.stdout


def said(failure: TrialFailed) -> str:
    return "\n" + "\n".join(str(failure).splitlines()[-12:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TrialFailed as failure:
        sys.exit(str(failure))
