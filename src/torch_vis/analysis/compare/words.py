"""Operations and tensors of two runs, and in what two of them differ, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.sides import strides_of
from torch_vis.analysis.compare.wiring import InputChange, Wiring
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.graph import Node, Value
from torch_vis.graph.text import and_more
from torch_vis.ops.schemas import argument_defaults, named_arguments

MOST_ARGUMENTS = 3
NO_ARGUMENT = "none"


def node_text(node: Node) -> str:
    """An operation and the module that it runs in."""
    phase = f" ({node.phase})" if node.phase != "forward" else ""
    return f"{node.name} in {module_of(node) or 'the run'}{phase}"


def changes_of(before: Node, after: Node, inputs: Sequence[InputChange], wiring: Wiring) -> list[str]:
    """The outputs, arguments and inputs of two matched operations, where they are not the same."""
    changes = [*type_changes(before, after)]
    calls = before.call.format(), after.call.format()
    if calls[0] != calls[1]:
        changes.append(f"{calls[0]} → {calls[1]}")
    elif before.call != after.call:
        changes.append(f"{before.call.op} → {after.call.op}")
    return changes + changes_of_inputs(inputs, wiring)


def type_changes(before: Node, after: Node) -> list[str]:
    """The types of the outputs of two operations, where they differ, else their strides."""
    types = [", ".join(str(value.type) for value in node.outputs) for node in (before, after)]
    if types[0] != types[1]:
        return [f"{types[0]} → {types[1]}"]
    if any(strides_of(a.type) != strides_of(b.type) for a, b in zip(before.outputs, after.outputs)):
        strides = [", ".join(str(value.type.stride) for value in node.outputs) for node in (before, after)]
        return [f"strides {strides[0]} → {strides[1]}"]
    return []


def changes_of_inputs(inputs: Sequence[InputChange], wiring: Wiring) -> list[str]:
    """What an operation reads instead of what its counterpart does."""
    a, b = wiring.a.values, wiring.b.values
    identities = sorted(row.identity_a for row in inputs), sorted(row.identity_b for row in inputs)
    if len(inputs) > 1 and identities[0] == identities[1]:
        return ["its operands are swapped" if len(inputs) == 2 else "its operands are in another order"]
    changes = []
    for row in inputs:
        if row.b < 0:
            changes.append(f"reads what {_producer_text(a[row.a])} writes in A alone")
        elif row.a < 0:
            changes.append(f"reads what {_producer_text(b[row.b])} writes in B alone")
        else:
            changes.append(f"reads {instead(a[row.a], b[row.b], wiring)}")
    return list(dict.fromkeys(changes))


def instead(before: Value, after: Value, wiring: Wiring) -> str:
    """What a value is in the place of another: ``x (input) instead of addmm in a``.

    Where its module has another path in ``a``, it goes by that: under its own, ``a`` may have another module.
    """
    for text in (_root_text, _producer_text, _exact_text):
        a, b = text(before), text(after)
        root = view_root(after)
        counterpart = int(wiring.value_to_a[root.index])
        in_a = (
            "" if counterpart < 0 or root.producer is None else _producer_text(wiring.a.values[counterpart])
        )
        if in_a not in ("", _producer_text(root)):
            return f"{in_a} (called {_module_text(root)} in B) instead of {a}"
        if a != b:
            break
    return f"{b} instead of {a}"


def view_root(value: Value) -> Value:
    """What a value is a view of, or itself."""
    producer = value.producer
    while producer is not None and "view" in producer.flags and producer.inputs:
        value = producer.inputs[0]
        producer = value.producer
    return value


def _root_text(value: Value) -> str:
    """What a value comes from, views looked through."""
    return _producer_text(view_root(value))


def _producer_text(value: Value) -> str:
    """What computed a value, or what it is if nothing did."""
    if value.producer is None:
        return f"{value.name} ({value.role})" if value.name else f"a {value.role} {value.type}"
    return node_text(value.producer)


def _module_text(value: Value) -> str:
    return (value.producer and module_of(value.producer)) or "the run"


def _exact_text(value: Value) -> str:
    """The same, with which of several operations or outputs it is."""
    producer = value.producer
    if producer is None:
        return f"{_producer_text(value)}, value {value.index}"
    outputs = [output.index for output in producer.outputs]
    which = f", result {outputs.index(value.index)}" if len(outputs) > 1 else ""
    return f"{producer.call.format()} in {_module_text(value)}, operation {producer.index}{which}"


def changed_arguments(call_a: Call, call_b: Call) -> str:
    """The arguments in which two calls differ, but for which tensors they take.

    >>> plain = Call("aten::gelu", (Slot(0),), ())
    >>> changed_arguments(plain, Call("aten::gelu", (Slot(0),), (("approximate", "tanh"),)))
    "approximate: 'none' → 'tanh'"
    """
    if call_a.op != call_b.op:
        return f"{call_a.op} → {call_b.op}"
    texts_a, texts_b = _argument_texts(call_a), _argument_texts(call_b)
    texts = [
        f"{name}: {texts_a.get(name, NO_ARGUMENT)} → {texts_b.get(name, NO_ARGUMENT)}"
        for name in changed_argument_names(call_a, call_b)
    ]
    return and_more(texts, MOST_ARGUMENTS)


def changed_argument_names(call_a: Call, call_b: Call) -> list[str]:
    """The names of the arguments in which two calls of an operator differ."""
    texts_a, texts_b = _argument_texts(call_a), _argument_texts(call_b)
    names = dict.fromkeys([*texts_a, *texts_b])
    return [name for name in names if texts_a.get(name, NO_ARGUMENT) != texts_b.get(name, NO_ARGUMENT)]


def _argument_texts(call: Call) -> dict[str, str]:
    """The arguments of a call in words, by name, with what its operator takes for those that are left out."""
    arguments = dict(named_arguments(call))
    defaults = {
        name: default for name, default in argument_defaults(call.op).items() if name not in arguments
    }
    return {name: _argument_text(argument) for name, argument in (arguments | defaults).items()}


def _argument_text(argument: Any) -> str:
    if isinstance(argument, Slot):
        return "a tensor"
    return NO_ARGUMENT if argument is None else Call("", (argument,), ()).format()[1:-1]
