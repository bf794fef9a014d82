"""What Dynamo knows of a partition's tensors, put where readers of its graph look for it.

Dynamo leaves a fake tensor on every node and nothing else. Here each node that makes one tensor gets the
``tensor_meta`` that other front-ends write, each placeholder the expression that it stands for (``source``), and the
module the weights that came in through placeholders (``weights`` and ``weight_paths``, by the name of the placeholder).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import _extract_tensor_metadata


def describe(module: fx.GraphModule, inputs: Sequence[Any] = ()) -> None:
    """Write down what is known of a partition, at the time that Dynamo hands it over."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                _describe_node(node)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    module.meta["weights"] = weights = {}
    module.meta["weight_paths"] = paths = {}
    for node, given in zip(placeholders, inputs):
        if isinstance(given, torch.Tensor) and is_state(node):
            weights[node.name] = given
            paths[node.name] = state_path(node.meta.get("source") or node.name)


def _describe_node(node: fx.Node) -> None:
    source = getattr(node, "_dynamo_source", None)
    if source is not None:
        name = source.name
        node.meta["source"] = name() if callable(name) else name
    known = node.meta.get("example_value", node.meta.get("val"))
    if isinstance(known, torch.Tensor) and "tensor_meta" not in node.meta:
        # Asking for contiguity of open sizes would make Dynamo guard on the answer.
        fixed = all(isinstance(size, int) for size in (*known.shape, *_strides(known)))
        node.meta["tensor_meta"] = _extract_tensor_metadata(known, include_contiguity=fixed)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def remember(module: fx.GraphModule, made: Any) -> None:
    """Keep, weakly, what a partition returned last, to find it again in what the model returned."""
    parts = made if isinstance(made, (tuple, list)) else (made,)
    module.meta["returned"] = [weakref.ref(p) if isinstance(p, torch.Tensor) else None for p in parts]


def is_state(node: fx.Node) -> bool:
    """Whether a placeholder stands for state that the program holds (a parameter, a buffer, a global).

    ``source`` is an expression over the locals ``L`` and globals ``G`` of the function that Dynamo took.
    """
    if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {}):
        return True
    source = str(node.meta.get("source", ""))
    return source.startswith("G[") or "._parameters[" in source or "._buffers[" in source


def state_path(source: str) -> str:
    """A weight's path as ``state_dict`` has it, from the expression that Dynamo knows it under.

    >>> state_path("L['self']._modules['layer']._modules['0']._parameters['weight']"), state_path("G['table']")
    ('layer.0.weight', 'table')
    """
    path = re.sub(r"^L\['\w+'\]\.?", "", source)
    path = re.sub(r"_(?:modules|parameters|buffers)\['([^']*)'\]", r"\1", path)
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", path)
    path = re.sub(r"[^0-9a-zA-Z_.]+", "_", path.removeprefix("G"))
    return re.sub(r"\.+", ".", path).strip(".") or "state"
