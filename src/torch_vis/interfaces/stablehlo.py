"""A program as StableHLO, made and run in a process of its own: torchax changes torch for the process that imports it.

``python -m torch_vis.interfaces.stablehlo PROGRAM INPUTS RESULT``
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

NAMED = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")


def import_torchax() -> Any:
    """torchax's exporter, with stand-ins for the overloads that it names and newer versions of torch have not.

    They are set before it is imported: it registers itself with torch half-way, and cannot be imported a second time.
    """
    spec = importlib.util.find_spec("torchax")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(folder).rglob("*.py"):
            for op, overload in NAMED.findall(path.read_text(encoding="utf-8")):
                packet = getattr(torch.ops.aten, op, None)
                if packet is not None and not hasattr(packet, overload):
                    setattr(packet, overload, object())
    return importlib.import_module("torchax.export")


def main(program: str, inputs: str, result: str) -> None:
    """Convert, compile, run, and write the outputs."""
    import jax
    import numpy as np

    started = time.perf_counter()
    exporter = import_torchax()
    exported = torch.export.load(program)
    args = tuple(np.asarray(tensor) for tensor in torch.load(inputs))
    begun = time.perf_counter()
    weights, function = exporter.exported_program_to_jax(exported)
    lowered = jax.jit(function).lower(weights, args)
    text = lowered.as_text()
    seconds = time.perf_counter() - begun
    outputs = [torch.from_numpy(np.array(out)) for out in jax.tree.leaves(lowered.compile()(weights, args))]
    operations = Counter(re.findall(r"= \"?(?:stablehlo\.)(\w+)", text))
    torch.save(
        {"seconds": seconds, "starting": begun - started, "operations": dict(operations), "outputs": outputs},
        result,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
