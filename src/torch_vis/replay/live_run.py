"""A recorded run with its live objects: the tensors that a replay starts from, the output, how it was called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch_vis.errors import TensorsMissing
from torch_vis.graph.record import Run

if TYPE_CHECKING:
    from torch_vis.capture.compilers.program import Program
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.graph.graph import Graph
    from torch_vis.graph.metrics import Metrics
    from torch_vis.replay.inputs import Entry


class LiveRun(Run):
    """A run, and what of it lives in this process; a file keeps the run alone."""

    output: Any
    """What the traced callable returned."""
    error: BaseException | None
    """The exception that ended the run, if one did."""
    program: Program | None
    """What a compiler's front-end captured, where the trace went through one."""
    kept: KeptTensors | None
    """The tensors that ``check`` and ``run`` start from and compare with; None where none are held."""
    entry: Entry | None
    """How the run was called, so that it can be called on other inputs."""

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        limits: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        output: Any = None,
        kept: KeptTensors | None = None,
        error: BaseException | None = None,
        program: Program | None = None,
        entry: Entry | None = None,
    ) -> None:
        super().__init__(graph, metrics, limits, meta)
        self.output, self.error, self.program = output, error, program
        self.kept, self.entry = kept, entry

    def needs_tensors(self, purpose: str) -> KeptTensors:
        """The tensors that are held; raises ``TensorsMissing`` where there are none to ``purpose`` with."""
        if self.kept is None and self.meta.get("fake"):
            raise TensorsMissing(f"this was worked out on shapes: there are no numbers to {purpose} it with")
        if self.kept is None:
            raise TensorsMissing(
                "this trace holds no tensors (loaded from a file, released, or traced with keep=False); "
                f"trace again to {purpose} it"
            )
        return self.kept
