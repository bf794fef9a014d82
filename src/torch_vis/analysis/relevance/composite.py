"""Operations that are made of others: taken apart by torch's own decompositions and run again on the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance.call import Call
from torch_vis.analysis.relevance.fx_steps import Steps
from torch_vis.ops.higher_order import TRANSPARENT


class Expansion(NamedTuple):
    """An operation as a graph of its own, with the values of its run and the leaves that its inputs stand for."""

    steps: Steps
    values: list[Any]
    leaves: list[int]  # for each placeholder, the position among the call's leaves


def expand(call: Call) -> Expansion | None:
    """The operation's parts, where torch can take it apart."""
    wrapped = _wrapped(call)
    if wrapped is not None:
        return wrapped
    function = _decomposition(call)
    if function is None:
        return None
    places = [place for place, leaf in enumerate(call.leaves) if isinstance(leaf.value, torch.Tensor)]
    inputs = [call.leaves[place].value for place in places]

    def parts(*tensors: torch.Tensor) -> Any:
        values = [leaf.value for leaf in call.leaves]
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        args, kwargs = pytree.tree_unflatten(values, call.spec)
        return function(*args, **kwargs)

    module = _traced(parts, inputs)
    if module is None or all(node.target is call.target for node in _calls(module)):
        return None
    steps = Steps(module)
    return Expansion(steps, steps.run(inputs), places)


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def _traced(function: Callable[..., Any], inputs: list[torch.Tensor]) -> fx.GraphModule | None:
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module: fx.GraphModule = make_fx(function, tracing_mode="real")(*inputs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # no decomposition for these arguments: the caller has another rule
    return module


def _decomposition(call: Call) -> Callable[..., Any] | None:
    if call.name == "scaled_dot_product_attention":
        return _attention
    if not isinstance(call.target, torch._ops.OpOverload):
        return None
    found = torch._decomp.decomposition_table.get(call.target)
    if found is not None:
        return found
    if call.target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return call.target
    return None


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention in its plain form: two products with a softmax between."""
    made = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return made[0]


def _wrapped(call: Call) -> Expansion | None:
    """The graph inside a higher-order operator that runs one graph on its operands."""
    if call.name not in TRANSPARENT:
        return None
    modules = [leaf.value for leaf in call.leaves if isinstance(leaf.value, fx.GraphModule)]
    if call.name == "cond":
        predicate = call.leaves[0].value
        chosen = modules[0] if bool(predicate) else modules[1]
    else:
        chosen = modules[0]
    last = max(place for place, leaf in enumerate(call.leaves) if isinstance(leaf.value, fx.GraphModule))
    places = list(range(last + 1, len(call.leaves)))
    steps = Steps(chosen)
    if len(steps.inputs) != len(places):
        return None
    with torch.no_grad():
        return Expansion(steps, steps.run([call.leaves[place].value for place in places]), places)
