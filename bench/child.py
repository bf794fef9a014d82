"""Measurements that need a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAST_LINE = (
    "import importlib, json, sys; module, name, options = sys.argv[1:4]; "
    "found = getattr(importlib.import_module(module), name)(**json.loads(options)); "
    "print(json.dumps(found))"
)


def call(function: str, *, threads: int | None = None, **options: Any) -> Any:
    """Call ``package.module:function`` in a new interpreter; options and result travel as JSON.

    ``threads`` is how many it computes with; without it, as many as torch chooses.
    """
    module, _, name = function.partition(":")
    return python(LAST_LINE, module, name, json.dumps(options), threads=threads)


def python(program: str, *arguments: str, threads: int | None = None) -> Any:
    """Run a program text in a new interpreter and read the JSON in the last line that it prints."""
    paths = [ROOT, os.path.join(ROOT, "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    if threads is not None:
        environment.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)))
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a measuring process ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])
