"""One table of operators: each in one group, all of them torch's own, and families that exist."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from torch_vis.errors import UsageError
from torch_vis.graph import Call, Slot
from torch_vis.ops.cost import covered, register_cost
from torch_vis.ops.cost.elementwise import WORK
from torch_vis.ops.cost.registry import formula_of
from torch_vis.ops.families import kind_of, loop_kind
from torch_vis.ops.op_table import GROUPS, KINDS
from torch_vis.ops.schemas import argument_names, named_arguments, resolve


def test_an_operator_is_in_one_group_and_is_torchs():
    listed = Counter(name for group in GROUPS.values() for name in group.names.split())
    assert [name for name, times in listed.items() if times > 1 or name in WORK] == []
    known = {name.partition(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    known |= {name.removesuffix("_") for name in known}
    assert {group.family for group in GROUPS.values()} <= {*KINDS, None}
    assert [name for name in listed if name not in known and not hasattr(torch, name)] == []


def test_every_formula_has_a_family_that_exists():
    assert {formula_of(op).family for op in covered()} <= set(KINDS)


def test_a_family_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="matmul"):
        register_cost("mylib::product", family="matmull")


@pytest.mark.parametrize(
    ("op", "kind", "loop"),
    [
        ("aten::addmm", "matmul", "HEAVY"),
        ("aten::add_.Tensor", "elementwise", "POINT"),
        ("aten::__ior__.Tensor", "elementwise", "POINT"),
        ("aten::cat", "copy", "JOIN"),
        ("aten::empty.memory_format", "view", "FREE"),
        ("aten::bernoulli_.float", "random", "POINT"),
        ("aten::sort", "sorting", "OTHER"),
        ("aten::_foreach_add_.List", "optimizer", "OTHER"),
        ("mylib::relu", "other", "OTHER"),
    ],
)
def test_a_name_says_the_kind_and_the_loop(op, kind, loop):
    assert (kind_of(op), loop_kind(op).name) == (kind, loop)


def test_a_stored_name_leads_to_the_operator_and_its_arguments():
    assert resolve("aten::add.Tensor") is torch.ops.aten.add.Tensor
    assert argument_names("aten::mm") == ("self", "mat2")
    assert named_arguments(Call("mylib::f", (Slot(0),), ())) == [("arg0", Slot(0))]
    with pytest.raises(UsageError, match="mylib::absent"):
        resolve("mylib::absent")
