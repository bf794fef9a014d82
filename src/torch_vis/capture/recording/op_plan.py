"""What the recorder knows of each operator: which arguments it writes, which it reads the shape of only, and so on.

Most of it is in the operator's schema and is read from there once. The tables below hold what schemas do not say.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import torch

from torch_vis.ops.collectives import Collective, collective, is_wait
from torch_vis.ops.op_table import UNINITIALIZED

# Operators that look only at the geometry of the tensor at these argument positions.
SHAPE_ONLY: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ["empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"],
        (0,),
    ),
    **dict.fromkeys(["new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"], (0,)),
    **dict.fromkeys(["expand_as", "view_as", "reshape_as", "type_as", "resize_as_"], (1,)),
    **dict.fromkeys(["avg_pool1d_backward", "avg_pool2d_backward", "avg_pool3d_backward"], (1,)),
    **dict.fromkeys(["_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"], (1,)),
    **dict.fromkeys(["max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"], (1,)),
    **dict.fromkeys(["adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"], (1,)),
    **dict.fromkeys(["fractional_max_pool2d_backward", "fractional_max_pool3d_backward"], (1,)),
    **dict.fromkeys([f"reflection_pad{n}d_backward" for n in (1, 2, 3)], (1,)),
    **dict.fromkeys([f"replication_pad{n}d_backward" for n in (1, 2, 3)], (1,)),
    **dict.fromkeys(["nll_loss_backward", "nll_loss2d_backward"], (1,)),
    **dict.fromkeys(["cudnn_batch_norm_backward", "miopen_batch_norm_backward"], (3, 4)),
    **dict.fromkeys(["is_same_size", "_is_same_size"], (0, 1)),
}
SHAPE_ONLY_OVERLOADS: dict[str, tuple[int, ...]] = {"aten::bernoulli.p": (0,), "aten::to.other": (1,)}

# The same for arguments that a call does not read because of another: a gradient that is not asked for, a mode. The
# number is how many arguments a call must have to tell.
MEAN, MAX = 1, 2
UNREAD: dict[str, tuple[int, Callable[[Any], tuple[int, ...]]]] = {
    # a kernel that is asked for the bias's gradient gives the weight's along with it
    "convolution_backward": (11, lambda args: _unless(args[10][0], 2) + _unless(any(args[10][1:]), 1)),
    "native_batch_norm_backward": (
        10,
        lambda args: ((3, 4) if args[7] else (5, 6)) + _unless(args[9][0], 2),
    ),
    "native_layer_norm_backward": (8, lambda args: (6, *_unless(args[7][0], 5))),
    "native_group_norm_backward": (10, lambda args: _unless(args[9][0], 4)),
    "_embedding_bag_backward": (9, lambda args: _unless(args[8] == MEAN, 4) + _unless(args[8] == MAX, 5)),
}


def _unless(is_read: bool, *positions: int) -> tuple[int, ...]:
    return () if is_read else positions


# In-place operators that overwrite their first argument without reading it.
OVERWRITES = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ set_ "
    "_foreach_copy_ _foreach_zero_ _foreach_fill_".split()
)

# Writes that the schema does not declare: argument positions, and the position of the flag that turns them on.
UNDECLARED: dict[str, tuple[tuple[int, ...], int | None]] = {
    "native_batch_norm": ((3, 4), 5),
    "batch_norm": ((3, 4), 5),
    "_batch_norm_impl_index": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
    "instance_norm": ((3, 4), 5),
}

# Operators whose result may carry a conjugate or negative bit.
CONJ_OR_NEG = frozenset("_conj _neg_view conj adjoint mH imag real matrix_H positive".split())

# Operators whose result is a Python value computed from a tensor's contents.
ESCAPES = frozenset("_local_scalar_dense item is_nonzero equal allclose _nnz".split())

# What an operator of another library gives to Python if its schema says so, in a list or not.
NUMBERS = frozenset("int float bool number complex str".split())

# What is bookkeeping, not computation: namespaces, and the wrapper around what a collective receives, which is waited
# for when it is used and has no memory of its own.
SKIPPED = ("profiler::", "prim::", "_c10d_functional::_wrap_tensor_autograd")


def eager_kernel(func: Any) -> Callable[..., Any]:
    """What a higher-order operator does in eager mode, as Python that can run under a mode or above one."""
    own: Callable[..., Any] = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd, func)
    return KERNELS.get(func._name, own)


def _cond(condition: Any, if_true: Any, if_false: Any, operands: Any = ()) -> Any:
    """What ``torch.cond`` does."""
    return if_true(*operands) if condition else if_false(*operands)


def _scan(combine: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """What ``scan`` does."""
    from torch._higher_order_ops.scan import generic_scan

    return generic_scan(combine, init, xs, additional_inputs=additional_inputs)


# Of those higher-order operators whose own eager kernel refuses to run under a mode.
KERNELS: dict[str, Callable[..., Any]] = {"cond": _cond, "scan": _scan}


def _all_gather_copy_in() -> Callable[..., Any]:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    copy_in: Callable[..., Any] = _fsdp_collectives.all_gather_copy_in_cuda
    return copy_in


# Operators that are Python inside and write what their schema does not declare: what they call is recorded instead.
INLINED: dict[str, Callable[[], Callable[..., Any]]] = {"fsdp::all_gather_copy_in": _all_gather_copy_in}


class OpPlan:
    """What the recorder needs to know of one operator, worked out at its first call."""

    __slots__ = (
        "calls",
        "collective",
        "conj_or_neg",
        "escape",
        "func",
        "inlined",
        "is_detach",
        "is_hop",
        "is_special",
        "is_view",
        "lifts",
        "mixes_numbers",
        "name",
        "overwrites",
        "random",
        "run",
        "shape_only",
        "skip",
        "takes_storage",
        "undeclared",
        "uninitialized",
        "unread_by",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        self.calls: dict[Any, int] = {}
        self.run = getattr(func, "_op", func)
        self.undeclared: tuple[tuple[int, ...], int | None] | None = None
        self.shape_only: tuple[int, ...] = ()
        self.unread_by: tuple[int, Callable[[Any], tuple[int, ...]]] | None = None
        self.writes: tuple[int | str, ...] = ()
        self.overwrites: frozenset[int | str] = frozenset()
        self.random = self.escape = self.skip = self.is_view = self.takes_storage = False
        self.uninitialized = self.conj_or_neg = False
        # whether it stands for a tensor being made of Python's values
        self.lifts = False
        # whether it takes a list of numbers of any kind: 1, 1.0 and True are equal, and other calls
        self.mixes_numbers = False
        # what it does with other ranks, if it talks to them or waits for them
        self.collective: Collective | None = None
        # torch's own Python for it, where its schema does not say what it writes
        self.inlined: Callable[..., Any] | None = None
        # whether it is recorded another way than most: the mode's ``_run_special``, or a storage as a tensor
        self.is_special = False
        self.is_detach = func is torch.ops.aten.detach.default
        self.is_hop = isinstance(func, torch._ops.HigherOrderOperator)
        if isinstance(func, torch._ops.OpOverload):
            self._read_schema(func)
        else:
            self.name = f"higher_order::{getattr(func, '_name', func)}"

    def _read_schema(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        self.name = f"{schema.name}{overload}"
        short = schema.name.rpartition("::")[2]
        aten = schema.name.startswith("aten::")
        writes: list[int | str] = []
        overwrites: list[int | str] = []
        for position, argument in enumerate(schema.arguments):
            self.mixes_numbers |= str(argument.type) == "List[number]"
            if argument.alias_info is None:
                continue
            if not argument.alias_info.is_write:
                self.is_view = True
                continue
            key: int | str = argument.name if argument.kwarg_only else position
            writes.append(key)
            if argument.is_out or (aten and short in OVERWRITES and position == 0):
                overwrites.append(key)
        self.writes = tuple(writes)
        self.overwrites = frozenset(overwrites)
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.skip = schema.name.startswith(SKIPPED)
        if aten:
            self.undeclared = UNDECLARED.get(short)
            self.unread_by = UNREAD.get(short)
            self.shape_only = SHAPE_ONLY_OVERLOADS.get(self.name, SHAPE_ONLY.get(short, ()))
            self.escape = short in ESCAPES
            self.lifts = short == "lift_fresh"
            self.uninitialized = short in UNINITIALIZED
            self.conj_or_neg = short in CONJ_OR_NEG
            self.takes_storage = self.is_special = self.name.startswith("aten::set_.source_Storage")
        elif schema.name in INLINED:
            self.inlined, self.is_special = INLINED[schema.name](), True
        else:
            self.collective = collective(self.name)
            self.is_special = self.collective is not None or is_wait(self.name)
            given = {word for result in schema.returns for word in re.findall(r"\w+", str(result.type))}
            self.escape = not self.is_special and not given.isdisjoint(NUMBERS)

    def fresh(self) -> OpPlan:
        """The same plan with no calls numbered yet."""
        plan = copy.copy(self)
        plan.calls = {}
        return plan

    def unread(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        """The positions of the arguments that a call with these arguments takes only the shape of."""
        if self.unread_by is None or len(args) < self.unread_by[0]:
            return self.shape_only
        return self.shape_only + self.unread_by[1](args)

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, ...]:
        """The arguments that a call with these arguments writes, by position or name."""
        if self.undeclared is None:
            return self.writes
        positions, flag = self.undeclared
        if flag is not None and not (len(args) > flag and args[flag]):
            return self.writes
        return self.writes + tuple(p for p in positions if len(args) > p and args[p] is not None)
