"""What ``torch.compile`` in fact puts into one kernel: a model is compiled by Inductor, whose scheduler is listened to.

Inductor has a hook that is handed the scheduled kernels after fusion, ``_post_fusion_custom_pass``; it is private to
torch and may change, so all that is taken from there is read in this file. Each piece of a kernel knows the nodes that
it came from, and each of these the operator that it was before it was decomposed and the node of Dynamo's graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from torch_vis.capture.compilers.diagnose import failed
from torch_vis.capture.compilers.dynamo_cache import forgetting, isolated
from torch_vis.capture.compilers.interpreter import PASSIVE, target_name
from torch_vis.capture.undo import HeldSignals, Undo, context
from torch_vis.errors import CaptureFailed
from torch_vis.graph.call import short_name


class Origin(NamedTuple):
    """What a piece of a kernel was: Inductor's node, the operator before decomposition, the node of Dynamo's graph.

    ``position`` is that of Inductor's node in its graph.
    """

    node: str
    op: str
    source: str
    position: int


class InductorKernel(NamedTuple):
    """One thing that the compiled program runs: a generated loop, or a call of a library (``extern``)."""

    name: str
    extern: bool
    origins: tuple[Origin, ...]


class CallNode(NamedTuple):
    """A node of Dynamo's graph that runs something: its name, and the scope that a trace has for it."""

    name: str
    path: str
    type: str


class CompiledGraph(NamedTuple):
    """One graph from Dynamo: the nodes that run something, and the kernels that Inductor made of them."""

    nodes: tuple[CallNode, ...]
    kernels: tuple[InductorKernel, ...]


def compiled(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[CompiledGraph]:
    """Compile a model by Inductor, run it once, and say which kernels it consists of.

    Code that was compiled is forgotten afterwards, what the user had compiled stays, and no setting is left changed.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.exc import InductorError

    _require_compiler(model, args, kwargs)
    graphs: list[CompiledGraph] = []

    def compile_(module: fx.GraphModule, inputs: Any) -> Any:
        kernels: list[InductorKernel] = []
        names = call_nodes(module)
        with _listening(kernels):
            run = compile_fx(module, inputs)
        graphs.append(CompiledGraph(names, tuple(kernels)))
        return run

    with HeldSignals(), forgetting():
        run = torch._dynamo.optimize(compile_, **isolated())(model)
        try:
            run(*args, **kwargs)
        except (TorchDynamoException, InductorError) as error:
            raise failed(
                "torch.compile", error, "t.fusion() says what could be fused without compiling"
            ) from error
    return graphs


def call_nodes(module: fx.GraphModule) -> tuple[CallNode, ...]:
    """A graph's nodes that run something of their own, in order."""
    calls = [node for node in module.graph.nodes if node.op not in (*PASSIVE, "call_module")]
    return tuple(CallNode(node.name, re.sub(r"_\d+$", "", node.name), target_name(node)) for node in calls)


@context
def _listening(undo: Undo, kernels: list[InductorKernel]) -> None:
    """Note what the scheduler has fused in every graph that is compiled inside; what it did is not changed."""
    from torch._inductor import config

    theirs = config._post_fusion_custom_pass

    def listen(scheduled: list[Any]) -> list[Any]:
        if theirs is not None:
            scheduled = theirs(scheduled)
        kernels.extend(_read(scheduled))
        return scheduled

    # With such a pass set, Inductor neither takes a graph from its cache nor puts one there.
    undo.set(config, "_post_fusion_custom_pass", listen)


def _read(scheduled: list[Any]) -> Iterator[InductorKernel]:
    """The kernels of one graph, from what the scheduler knows of them."""
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode

    kept = [item for item in scheduled if not isinstance(item, NopKernelSchedulerNode)]
    kept = [item for item in kept if not all(isinstance(part.node, MultiOutput) for part in item.get_nodes())]
    node_of_buffer = {
        buffer.get_name(): getattr(part.node, "origin_node", None)
        for item in scheduled
        for part in item.get_nodes()
        if part.node is not None
        for buffer in part.get_outputs()
    }
    indices: dict[fx.Node, int] = {}
    for item in kept:
        for part in item.get_nodes():
            for node in part.node.get_origins() if part.node is not None else ():
                if node not in indices:
                    indices.update({other: index for index, other in enumerate(node.graph.nodes)})
        extern = bool(item.is_extern())
        nodes = _library_call(item, indices) if extern else _computed(item, node_of_buffer)
        yield InductorKernel(
            str(item.get_name()), extern, tuple(_origin(node, indices.get(node, 0)) for node in nodes)
        )


def _library_call(item: Any, indices: Mapping[fx.Node, int]) -> list[fx.Node]:
    """What a call of a library stands for; its origins also name its arguments, which stand before it."""
    nodes: dict[fx.Node, None] = {}
    for part in item.get_nodes():
        own = getattr(part.node, "origin_node", None)
        if own is None:
            own = max(part.node.get_origins(), key=lambda node: indices.get(node, 0), default=None)
        if own is not None:
            nodes[own] = None
    return list(nodes)


def _computed(item: Any, node_of_buffer: Mapping[str, fx.Node | None]) -> list[fx.Node]:
    """The nodes that a generated loop computes: its origins, as far back as the buffers that it reads."""
    parts = [part for part in item.get_nodes() if part.node is not None]
    origins = {node for part in parts for node in part.node.get_origins()}
    written = {buffer.get_name() for part in parts for buffer in part.get_outputs()}
    read = {dep.name for part in parts for dep in part.read_writes.reads} - written
    given = {node for name in read if (node := node_of_buffer.get(name)) is not None}
    own = [getattr(part.node, "origin_node", None) for part in parts]
    stack = [node for node in own if node is not None]
    if len(stack) < len(own):
        stack = list(origins)  # the value of a part is not known
        given = set()
    ends = set(stack)
    computed: dict[fx.Node, None] = {}
    while stack:
        node = stack.pop()
        if node in computed or (node not in ends and (node in given or node not in origins)):
            continue
        computed[node] = None
        stack.extend(node.all_input_nodes)
    return list(computed)


def _origin(node: fx.Node, index: int) -> Origin:
    aten = node.meta.get("original_aten", node.target)
    name = str(aten._schema.name) if isinstance(aten, torch._ops.OpOverload) else str(aten)
    chain = node.meta.get("from_node") or []
    return Origin(node.name, short_name(name), chain[0].name if chain else "", index)


def _require_compiler(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise at once where there is no C++ compiler, which Inductor needs for all that runs on the CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils import _pytree as pytree

    tensors = [item for item in pytree.tree_leaves((args, dict(kwargs))) if isinstance(item, torch.Tensor)]
    if isinstance(model, torch.nn.Module):
        tensors += [*model.parameters(), *model.buffers()]
    if tensors and all(tensor.device.type != "cpu" for tensor in tensors):
        return
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise CaptureFailed(
            "torch.compile needs a C++ compiler for what runs on the CPU, and none was found; "
            "install g++ or clang++, or name one in the environment variable CXX"
        ) from error
