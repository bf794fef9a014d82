"""Every name of our own that was renamed: the old ones work for one release and say what to write now.

``NAMES`` are names of the package, ``CLASSES`` those of ``types``, ``OPTIONS`` those of options, by their function, and
``ATTRIBUTES`` those of attributes, by the class that has the new one. Names of the source documents are not here: they
stay as they are.
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

OPTIONS: dict[str, dict[str, str]] = {
    # the function: its old options and the new ones
    "batch_size": {"measure": "measured"},
    # ``keep`` is also an option of today, which takes no True and no False
    "record": {"keep": "hold"},
    "trace": {"keep": "hold"},
}

CLASSES: dict[str, str] = {
    # the old name in torch_vis.types: the new one
    "CompiledKernels": "KernelsReport",
}

ATTRIBUTES: dict[str, dict[str, str]] = {
    # the class: its old attributes and the new ones
    "KernelsReport": {"found": "fusion"},
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


def option_now(function: str, option: str, *, stacklevel: int) -> str:
    """What an option of a function is called now, after saying so; ``stacklevel`` counts from the caller.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     option_now("batch_size", "measure", stacklevel=1), str(caught[0].message)
    ('measured', 'measure= of batch_size() is now called measured=, and the old name will go in the next release')
    """
    new = OPTIONS[function][option]
    warn(f"{option}= of {function}() is now called {new}=", stacklevel=stacklevel + 1)
    return new


def warn(text: str, *, stacklevel: int) -> None:
    """Say that an old name was used; ``stacklevel`` counts from the caller of this function."""
    warnings.warn(
        f"{text}, and the old name will go in the next release", DeprecationWarning, stacklevel=stacklevel + 1
    )
