"""Make or mend .venv, the environment that every chore of the Makefile runs in.

    python3 tools/setup_env.py            what `make test`, `make demo`, `make check` and `make corpus` need
    python3 tools/setup_env.py bench      and the peers that `make bench` measures against

The last act is to write a stamp: a digest of the files that decide what is installed, and the names of the
distributions that were. While the stamp holds, a run looks at the disk only and is silent. An environment whose
files are damaged is made anew; one that is merely behind is brought up to date in place.

Some tests drive programs that are not Python's (Graphviz, a browser, Node). Where this machine lets us, they are
installed too; where it does not, those tests skip and say what is missing.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "ready.json"
CONSTRAINTS = ROOT / "constraints.txt"
HOOK = ROOT / "tools" / "torchvision_cpu.py"
INPUTS = (ROOT / "pyproject.toml", CONSTRAINTS, HOOK, Path(__file__).resolve())
OLDEST_PYTHON = (3, 10)
PROGRAMS = {"dot": "graphviz", "chromium": "chromium", "chromedriver": "chromium-driver", "node": "nodejs"}


class SetupFailed(Exception):
    """The environment could not be made; the message is all the user needs."""


def main(extras: list[str]) -> int:
    with one_at_a_time():
        stamp = read_stamp()
        wanted = sorted({"dev", "zoo", *extras} | set(stamp.get("extras", ())))
        damage = find_damage(stamp)
        if damage is None and is_current(stamp, wanted):
            return 0
        started = time.monotonic()
        if not VENV.exists():
            say("setting up .venv (once) ...")
        elif damage is None:
            say("bringing .venv up to date ...")
        else:
            say(f"making .venv anew: {damage} ...")
        STAMP.unlink(missing_ok=True)
        if damage is not None:
            make_venv()
        install(wanted)
        damage = find_damage({})
        if damage is not None:
            raise SetupFailed(f"the new .venv is not whole: {damage}; run `make clean` and try again")
        install_programs()
        write_stamp(wanted)
        say(f".venv is ready ({time.monotonic() - started:.0f} s)")
    return 0


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two chores started at once share one set-up: the second waits for the first."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


# What is there


def read_stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(extras: list[str]) -> None:
    stamp = {"root": str(ROOT), "digest": digest(), "extras": extras, "installed": installed()}
    unfinished = STAMP.with_suffix(".part")
    unfinished.write_text(json.dumps(stamp, indent=1))
    unfinished.replace(STAMP)


def is_current(stamp: dict[str, Any], extras: list[str]) -> bool:
    return (
        stamp.get("digest") == digest()
        and stamp.get("extras") == extras
        and set(stamp.get("installed", ())) <= set(installed())
    )


def digest() -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in INPUTS)).hexdigest()


def site_packages() -> Path | None:
    return next(VENV.glob("lib/python*/site-packages"), None)


def installed() -> list[str]:
    site = site_packages()
    return sorted(info.name for info in site.glob("*.dist-info")) if site else []


def find_damage(stamp: dict[str, Any]) -> str | None:
    """Say what is wrong with the environment as it lies on disk, or None.

    A file that pip recorded must still be there, and not empty if it had content: a full disk, an interrupted install
    or a hasty `rm` breaks that, and pip itself would not notice. Edited files are the user's business.
    """
    if not VENV.exists():
        return "it does not exist"
    if stamp and stamp.get("root") != str(ROOT):
        return "it was made for another folder"
    probe = "import sys, pip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([PYTHON, "-I", "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return "its Python is gone"
    if answer.returncode != 0:
        return "its Python or its pip does not start"
    if tuple(map(int, answer.stdout.split())) < OLDEST_PYTHON:
        return f"its Python is older than {dotted(OLDEST_PYTHON)}"
    site = site_packages()
    for info in site.glob("*.dist-info") if site else ():
        if not info.name.startswith("~") and not is_whole(info):
            return f"{info.name.removesuffix('.dist-info')} is damaged"
    return None


def is_whole(info: Path) -> bool:
    try:
        rows = list(csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()))
        return all(
            os.stat(info.parent / path).st_size > 0 for path, _, size in rows if size.isdigit() and int(size)
        )
    except (OSError, ValueError):
        return False


# What is done about it


def make_venv() -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise SetupFailed(
            f"{sys.executable} has no venv module; on Debian or Ubuntu run: apt install python3-venv"
        ) from None
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    # `python3` may be the .venv that was just removed, if it is activated: start from the Python beneath it.
    base = getattr(sys, "_base_executable", None) or sys.executable
    run([base, "-m", "venv", str(VENV)], "make .venv")


def install(extras: list[str]) -> None:
    # torchvision comes alone, after torch and before timm asks for it, so that it cannot bring another torch along.
    pip("torch and numpy", "torch", "numpy", "setuptools")
    pip("torchvision", "--no-deps", "torchvision")
    packages = f"torch-vis[{','.join(extras)}]"
    pip(packages, "--no-build-isolation", "--editable", f".[{','.join(extras)}]")
    site = site_packages()
    assert site is not None, "pip has just written there"
    shutil.copyfile(HOOK, site / HOOK.name)
    (site / HOOK.with_suffix(".pth").name).write_text(f"import {HOOK.stem}; {HOOK.stem}.arm()\n")


def install_programs() -> None:
    """Install what is missing with Debian's installer, if it is here and we may; never a reason to fail."""
    missing = {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}
    if not missing:
        return
    installer = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    if os.geteuid() != 0:
        installer = ["sudo", "-n", *installer]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if shutil.which(installer[0]) and shutil.which("apt-get"):
        say(f"  installing {', '.join(missing.values())}")
        for step in (["update"], ["install", "-y", "--no-install-recommends", *missing.values()]):
            subprocess.run(
                [*installer, *step],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        missing = {name: package for name, package in missing.items() if shutil.which(name) is None}
    if missing:
        say(f"  tests that need {', '.join(missing.values())} will be skipped; install them to run these too")


def pip(what: str, *arguments: str) -> None:
    say(f"  installing {what}")
    options = ["--quiet", "--no-input", "--no-compile", "--disable-pip-version-check"]
    options += ["--constraint", str(CONSTRAINTS)]
    run([str(PYTHON), "-m", "pip", "install", *options, *arguments], f"install {what}")


def run(command: list[str], purpose: str) -> None:
    redirections = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in redirections}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise SetupFailed(f"{said}\ncould not {purpose} (above: what was said); once mended, run make again")


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupFailed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("\nset-up stopped half-way; run make again to go on")
