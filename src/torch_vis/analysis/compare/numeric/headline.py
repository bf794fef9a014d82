"""What a person is told first about two runs that differ, and how operations and tensors of both are called there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.numeric.isolated_replay import OF_ROUNDING
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.rows import Node, Value
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import and_more
from torch_vis.replay.live_args import operator
from torch_vis.views.charts.names import placed

if TYPE_CHECKING:
    from torch_vis.analysis.compare.numeric.report import Difference, Differences

MOST_ARGUMENTS = 3
SAME = "no difference: all that could be compared is the same in both"
NOT_ELSE = "nothing else differs"
NO_NUMBERS = "no operation has numbers to compare"
NO_OUTPUT = "neither run gives anything back"


def named(node: Node, most: int = 1000) -> str:
    """An operation and where it stands, in about so many letters."""
    return placed(node.name, module_of(node), most) + (f" ({node.phase})" if node.phase != "forward" else "")


def tensor_name(value: Value) -> str:
    """A tensor by its own name, or by the operation that made it."""
    if value.producer is not None:
        return named(value.producer)
    return value.name or f"{value.type} from outside"


def told(gap: Gap | Difference) -> str:
    """A difference in words.

    >>> told(Gap(0.25, 1.0)), told(Gap(float("inf"), 2.0))
    ('0.25 relative', '2 from zero')
    """
    if gap.relative < float("inf"):
        return f"{gap.relative:.3g} relative"
    return (
        f"{gap.largest:.3g} from zero" if gap.largest < float("inf") else "NaN or infinity in one run alone"
    )


def at_most(gap: Gap | Difference) -> str:
    """The largest of some differences in words."""
    return f"at most {told(gap)}" if gap.largest < float("inf") else told(gap)


def called_otherwise(one: Call, two: Call) -> str:
    """The arguments in which two calls differ, but for which tensors they take.

    >>> called_otherwise(Call("aten::gelu", (Slot(0),), ()), Call("aten::gelu", (Slot(0),), (("approximate", "tanh"),)))
    "approximate: none → 'tanh'"
    """
    if one.op != two.op:
        return f"{one.op} → {two.op}"
    here, there = _by_name(one), _by_name(two)
    found = [
        f"{name}: {_shown(here.get(name))} → {_shown(there.get(name))}"
        for name in dict.fromkeys([*here, *there])
        if _shown(here.get(name)) != _shown(there.get(name))
    ]
    return and_more(found, MOST_ARGUMENTS)


def _by_name(call: Call) -> dict[str, Any]:
    names: list[str] = []
    try:
        schema: Any = operator(call.op)
        names = [argument.name for argument in schema._schema.arguments]
    except AttributeError:  # an operator that is not registered here, or has no schema
        pass
    args = {
        names[place] if place < len(names) else f"argument {place}": arg
        for place, arg in enumerate(call.args)
    }
    return {**args, **dict(call.kwargs)}


def _shown(item: Any) -> str:
    if isinstance(item, Slot):
        return "a tensor"
    return "none" if item is None else Call("", (item,), ()).format()[1:-1]


def in_short(found: Differences) -> str:
    """What to look at, in a sentence."""
    missing = found.outputs_left_out
    has_outputs = any(kind == "output" for kind, _ in found.results.values()) or bool(found.plain.other)
    if not found.any_compared:
        no_output = "" if missing or has_outputs else f"; {NO_OUTPUT}"
        return f"nothing could be compared: {NO_NUMBERS}, and no result has{no_output}"
    told = _what_differs(found)
    if found.plain.other:
        told = _other_outputs(found) + (f"; {told}" if told and not told.startswith(SAME) else "")
    if not missing:
        return (told or SAME) + ("" if has_outputs else f"; {NO_OUTPUT}")
    names = "; ".join(f"{and_more(names, 3)} ({reason})" for reason, names in missing.items())
    if has_outputs:
        return (
            f"{told}; not compared: {names}"
            if told
            else f"no difference in what could be compared; not compared: {names}"
        )
    return (
        f"{told}; no output could be compared"
        if told
        else f"no output could be compared: {names}; {NOT_ELSE}"
    )


def _other_outputs(found: Differences) -> str:
    """The outputs that are no numbers, and something else in both."""
    told = [f"{name} ({words})" for name, words in found.plain.other.items()]
    return f"{and_more(told, 3)} {'is' if len(told) == 1 else 'are'} something else"


def _what_differs(found: Differences) -> str:
    """The same of what could be compared; nothing where that is the same."""
    without = found.mixed | found.led_by_rounding
    results = {
        name: gap for name, (_, gap) in found.results.items() if not gap.rounding and name not in without
    }
    worst = max(results, key=lambda name: results[name].relative, default="")
    if not found.rows and not (worst and results[worst].relative):
        return f"{SAME}, but for what is nothing but rounding" if _only_rounds(found) else ""
    off = f"{at_most(results[worst])}, in {worst}" if worst else ""
    if worst and results[worst].relative and all(found.rounds(name) <= OF_ROUNDING for name in results):
        times = max(found.rounds(name) for name in results)
        return f"no more than rounding: results differ by {off} ({times:.2g} times the rounding of a single step)"
    if found.compiled and worst and results[worst].relative:
        return _given(found) or f"what the compiled code gave differs: {off}; {_inside(found)}"
    start = next((row for row in found.rows if found.is_start(row)), found.first)
    if start is not None:
        return _where_it_starts(found, start) + _not_a_number(found, start)
    if found.tolerance:
        return f"nothing that both runs do differs by more than {found.tolerance:g}; results differ by {off}"
    return _given(found) or (
        f"results differ by {off}, but nothing that both runs do: look at what only one of them does"
        + _made_by_another(found, worst)
    )


def _made_by_another(found: Differences, name: str) -> str:
    """What gives a result in both runs, if that is not the same."""
    if name in found.plain.gaps:
        is_tensor = name in found.plain.hidden
        return "" if is_tensor else f"; {name} is no tensor, and what is computed outside torch is not seen"
    one, two = next(pair for pair in found.matched.pairs if pair[0].name == name)
    here, there = found.called("A", one.value), found.called("B", two.value)
    return f" ({there} instead of {here})" if here != there else ""


def _only_rounds(found: Differences) -> bool:
    return any(gap.relative for _, gap in found.results.values())


def _inside(found: Differences) -> str:
    """What may be the matter inside compiled code."""
    if any(((trace.graph.node_flags & Flag.RANDOM) != 0).any() for trace in (found.a, found.b)):
        return "it draws random numbers of its own (dropout), so that only model.eval() can be compared"
    return "what is inside it cannot be compared"


def _given(found: Differences) -> str:
    if not found.given:
        return ""
    handed_on = ", and operations hand that on" if all(row.came_in is not None for row in found.rows) else ""
    return f"what the runs were given differs, {_most_of_all(found)}{handed_on}"


def _most_of_all(found: Differences) -> str:
    first = found.given[0]
    return f"most of all {first.name} ({told(first.gap)})"


def _not_a_number(found: Differences, start: Difference) -> str:
    """Where one run alone first made what is no number, unless that is where it starts."""
    row = next((row for row in found.rows if row.largest == float("inf")), start)
    return "" if row is start else f"; {named(row.a)} is the first to give {told(row)}"


def _where_it_starts(found: Differences, row: Difference) -> str:
    if not found.is_start(row):
        read = "cannot be compared" if row.came_in is None else f"differs by {row.came_in:.3g}"
        return _given(found) or f"{named(row.a)} is the first to differ ({told(row)}); what it reads {read}"
    is_first = "is the first to differ" if row is found.first else "differs"
    too = f"; what the runs were given differs too, {_most_of_all(found)}" if found.given else ""
    return _why_here(found, row, f"{named(row.a)} {is_first}") + too


def _why_here(found: Differences, row: Difference, differs: str) -> str:
    """What is the matter with an operation where a difference starts."""
    if found.came_in(row.a).rewired:
        return f"the runs part at {named(row.a)}, which reads {row.reads}"
    if "random" in row.a.flags:
        return f"{named(row.a)} drew other random numbers: seed both runs alike, with torch.manual_seed(…)"
    otherwise = called_otherwise(row.a.call, row.b.call)
    if otherwise:
        return f"{differs} ({told(row)}): it is called otherwise, {otherwise}"
    also = "" if found.came_in(row.a).others else "also "
    read = "is the same" if not row.came_in else f"differs by {row.came_in:.3g} only"
    return f"{differs} ({told(row)}), though what it reads {read}" + (
        f"; it {also}reads {row.reads}" if row.reads else ""
    )
