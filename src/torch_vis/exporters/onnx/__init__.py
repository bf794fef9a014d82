"""The ``.onnx`` file for Netron: modules that expand in place, shapes on edges, weights without their data.

It describes a run and is not meant to be executed: operators keep torch's names, in the domain ``aten``. A call of a
module is a node of the domain ``torch_vis`` whose attribute ``body`` is a graph; what it did in backward is a node of
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.record import Run

if TYPE_CHECKING:
    import onnx


def save(path: PathLike, run: Run) -> None:
    """Write a graph as an ONNX model that Netron shows, whole or not at all.

    >>> import tempfile, onnx
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.record import Run
    >>> path = tempfile.mkdtemp() + "/run.onnx"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> onnx.load(path).graph.name
    'Net'
    """
    data = to_onnx(run).SerializeToString(deterministic=True)
    with replacing(path) as file:
        file.write(data)


def to_onnx(run: Run) -> onnx.ModelProto:
    """The same model as an ``onnx.ModelProto``.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> model = to_onnx(t)
    >>> [(node.op_type, [inner.op_type for inner in node.attribute[0].g.node]) for node in model.graph.node]
    [('Linear', ['t', 'addmm']), ('ReLU', ['relu'])]
    """
    from torch_vis.exporters.onnx.protos import Protos
    from torch_vis.exporters.onnx.writer import Writer

    return Writer(run.graph, run.metrics, Protos()).model(run.limits, run.meta)
