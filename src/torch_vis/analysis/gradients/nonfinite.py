"""What of a run is NaN or infinite to begin with: left out of figures, and named."""

from __future__ import annotations

from torch_vis._trace import Trace
from torch_vis.analysis.gradients.tensor_stats import outside_faults
from torch_vis.errors import UsageError
from torch_vis.graph.text import and_more


def left_out(found: Trace, spoilt: int, elements: int, so: str) -> dict[str, int]:
    """How many elements are NaN or infinite: of what came in, by name, and ``spoilt`` of those of the output.

    An infinite input or buffer that does no harm is a mask. Where nothing of the output is left it raises, and ``so``
    says what that means.
    """
    roles = {value.name: value.role for value in found.graph.values if value.producer is None}
    given = {
        name: nans + infs if roles.get(name) == "parameter" else nans
        for name, (nans, infs) in outside_faults(found.graph, found.kept).items()
    }
    given = {name: number for name, number in given.items() if number}
    if spoilt and spoilt == elements:
        why = f" (it came in with {', '.join(given)})" if given else ""
        raise UsageError(f"all of the output is NaN or infinite{why}, so {so}")
    return {**given, "the output": spoilt} if spoilt else given


def warning(left_out: dict[str, int], most: int = 4) -> str:
    """The same in words.

    >>> warning({"input": 1, "the output": 1024})
    'NaN or infinite elements in input (1), the output (1,024): left out of all figures'
    """
    named = [f"{name} ({number:,})" for name, number in left_out.items()]
    return f"NaN or infinite elements in {and_more(named, most)}: left out of all figures"
