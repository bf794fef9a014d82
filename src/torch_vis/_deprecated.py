"""Every name of our own that was renamed: the old ones work for one release and say what to write now.

``NAMES`` are names of the package, ``ATTRIBUTES`` those of classes, by the class that has the new one. Names of the
source documents are not here: they stay as they are.
"""

from __future__ import annotations

import warnings
from typing import Any

NAMES: dict[str, str] = {
    # the old name in torch_vis: the new one
    "Hardware": "hardware.Hardware",
    "analyze_batch_size": "advise.batch_size",
    "analyze_pruning": "advise.pruning",
    "analyze_quantization": "advise.quantization",
    "calibrate": "measure.calibrate",
    "compiled_kernels": "measure.kernels",
    "known_hardware": "hardware.known",
    "load_calibration": "hardware.load",
    "measure_memory": "measure.memory",
    "predict_latency": "Trace.latency",
    "register_hardware": "hardware.register",
}

ATTRIBUTES: dict[str, dict[str, str]] = {
    # the class: its old attributes and the new ones
    "CompiledKernels": {"found": "fusion"},
    "FusionReport": {"found": "fusion"},
    "Calibration": {"to_plain": "to_dict"},
    "GradientsReport": {
        "born": "nan_origin",
        "came_in": "nan_inputs",
        "infinite_came_in": "infinite_inputs",
        "let_go": "freed",
    },
    "LatencyReport": {"found": "prediction"},
    "Report": {"to_plain": "to_dict"},
    "Comparison": {"to_plain": "to_dict"},
    "DifferencesReport": {
        "born": "origins",
        "came_in": "input_error",
        "gaps": "distances",
        "given": "input_differences",
        "led_by_rounding": "rounding_only",
        "left_out": "uncompared",
        "mixed": "accumulated",
        "outputs_left_out": "uncompared_outputs",
        "plain": "python_outputs",
        "rounds": "ulps",
    },
    "RooflineReport": {"found": "roofline"},
}


class Renamed:
    """A class whose old attributes still work: what ``ATTRIBUTES`` has for it or for a class that it is made from.

    >>> class Report(Renamed):
    ...     def to_dict(self):
    ...         return {}
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     Report().to_plain(), str(caught[0].message)
    ({}, 'Report.to_plain is now called to_dict, and the old name will go in the next release')
    """

    def __getattr__(self, name: str) -> Any:
        for kind in type(self).__mro__:
            new = ATTRIBUTES.get(kind.__name__, {}).get(name)
            if new is not None:
                warn(f"{kind.__name__}.{name} is now called {new}", stacklevel=3)
                return getattr(self, new)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def warn(text: str, *, stacklevel: int) -> None:
    """Say that an old name was used; ``stacklevel`` counts from the caller of this function."""
    warnings.warn(
        f"{text}, and the old name will go in the next release", DeprecationWarning, stacklevel=stacklevel + 1
    )
