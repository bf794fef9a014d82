"""Call templates go to JSON data and come back exactly."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torch_vis.graph import Call, Slot, Special
from torch_vis.graph.call import from_plain, short_name, to_plain
from torch_vis.graph.io.tables_json import call_from_plain, call_to_plain

literals = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.builds(Slot, st.integers(0, 9)),
    st.builds(Special, st.sampled_from(["dtype", "device", "layout", "object"]), st.text()),
)
templates = st.recursive(literals, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=20)


@given(templates)
def test_a_template_survives_json(template: Any) -> None:
    text = json.dumps(to_plain(template), allow_nan=False)
    assert repr(from_plain(json.loads(text))) == repr(template)


def test_equal_numbers_of_different_types_stay_different() -> None:
    call = Call("aten::a", (1, 1.0, True, 0.0, -0.0, 2**70), (("alpha", 1), ("beta", 1.0)))
    back = call_from_plain(json.loads(json.dumps(call_to_plain(call))))
    assert [type(arg) for arg in back.args] == [int, float, bool, float, float, int]
    assert math.copysign(1, back.args[4]) == -1
    assert repr(back) == repr(call)


def test_slots_are_listed_in_the_order_of_the_arguments() -> None:
    call = Call("aten::cat", ((Slot(0), (Slot(1),)), 1), (("out", Slot(2)),))
    assert list(call.slots()) == [0, 1, 2]


def test_a_call_reads_like_code() -> None:
    call = Call("aten::add_.Tensor", (Slot(0), (1, Slot(1))), (("dtype", Special("dtype", "float32")),))
    assert call.format(lambda slot: "ab"[slot]) == "add_(a, [1, b], dtype=float32)"
    assert short_name("prim::device") == "device"
