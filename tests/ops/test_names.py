"""Names of operators in one form, held against the operators that torch has."""

from __future__ import annotations

import pytest
import torch

from torch_vis.ops.names import common_name, forward_name, is_in_place, out_of_place, plain_name

ATEN = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))


def writes_first(op: str) -> bool:
    """Whether an operator's schema says that it writes its first argument and gives it back."""
    name, _, overload = op.partition(".")
    for schema in torch._C._jit_get_schemas_for_operator(name):
        if schema.overload_name == overload:
            first = schema.arguments[0].alias_info if schema.arguments else None
            return first is not None and first.is_write and not schema.arguments[0].kwarg_only
    return False


def test_what_its_name_calls_in_place_writes_its_first_argument():
    assert [op for op in ATEN if is_in_place(op) and not writes_first(op)] == []


@pytest.mark.parametrize("name", ["and", "or", "xor", "lshift", "rshift"])
def test_pythons_own_names_keep_their_underscores(name):
    assert plain_name(f"aten::__{name}__.Tensor") == f"__{name}__"
    assert plain_name(f"aten::__i{name}__.Tensor") == f"__{name}__"
    assert is_in_place(f"aten::__i{name}__") and not is_in_place(f"aten::__{name}__")


def test_namespace_and_overload_stay_where_only_the_underscore_goes():
    assert out_of_place("aten::add_.Tensor") == "aten::add.Tensor"
    assert out_of_place("aten::add.out") == "aten::add.out"


def test_a_name_has_a_common_form_and_a_forward_one():
    assert common_name("aten::_native_batch_norm_legit") == "batch_norm_legit"
    assert forward_name("_log_softmax_backward_data") == "_log_softmax"
    assert forward_name("_backward") == "_backward"
