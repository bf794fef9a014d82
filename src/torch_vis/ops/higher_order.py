"""Higher-order operators, which take graphs as arguments: one row for each that is not treated as a single node.

To support another one, add a row. ``bodies`` makes a captured program's interpreter run its graphs in scopes of their
own; ``inlined`` makes an eager recording see what its kernel calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class HigherOrder(NamedTuple):
    """What is known of one higher-order operator."""

    name: str
    bodies: Mapping[int, str] = {}
    """The arguments that are graphs, by position, and what each is to the operator."""
    inlined: bool = False
    """Whether its eager kernel runs under the recorder, so that what it calls is recorded."""
    refuses_modes: bool = False
    """Whether torch's eager kernel cannot run under a dispatch mode, so that the recorder has one of its own."""
    branches: bool = False
    """Whether numbers decide what it runs: another input may run other operations."""
    without_numbers: str = ""
    """What is shown of it in a run on shapes, where no number decides."""
    transparent: bool = False
    """Whether its result is that of one of its graphs on the operands that follow them."""
    slices: bool = False
    """Whether its graphs are run under vmap and see no whole tensors: they are named, not run one by one."""
    draws: bool = False
    """Whether it wraps an operator that draws random numbers."""
    autograd_module: str = ""
    """The module of torch with its autograd functions, whose inside is shown instead of them."""


TABLE: Mapping[str, HigherOrder] = {
    row.name: row
    for row in (
        HigherOrder(
            "cond",
            {1: "true", 2: "false"},
            inlined=True,
            refuses_modes=True,
            branches=True,
            without_numbers="a cond in it shows both of its branches: no number says which it would take",
            transparent=True,
            autograd_module="torch._higher_order_ops.cond",
        ),
        HigherOrder(
            "while_loop",
            {0: "condition", 1: "body"},
            inlined=True,
            branches=True,
            without_numbers="a while_loop in it shows one turn: no number says how many there would be",
            autograd_module="torch._higher_order_ops.while_loop",
        ),
        HigherOrder("while_loop_stack_output", {0: "condition", 1: "body"}, branches=True),
        HigherOrder(
            "scan",
            {0: "step"},
            inlined=True,
            refuses_modes=True,
            autograd_module="torch._higher_order_ops.scan",
        ),
        HigherOrder("map_impl", {0: "body"}),
        HigherOrder("associative_scan", {0: "combine"}),
        HigherOrder("wrap_with_set_grad_enabled", {1: "body"}, transparent=True),
        HigherOrder("wrap_with_autocast", {4: "body"}, transparent=True),
        HigherOrder(
            "flex_attention",
            {3: "score_mod"},
            inlined=True,
            slices=True,
            autograd_module="torch._higher_order_ops.flex_attention",
        ),
        HigherOrder("flex_attention_backward", inlined=True),
        HigherOrder("run_and_save_rng_state", draws=True),
        HigherOrder("run_with_rng_state", draws=True),
    )
}
INLINED = frozenset(name for name, row in TABLE.items() if row.inlined)
BRANCHES = frozenset(name for name, row in TABLE.items() if row.branches)
TRANSPARENT = frozenset(name for name, row in TABLE.items() if row.transparent)
INTERPRETED = frozenset(name for name, row in TABLE.items() if row.bodies or row.draws)
"""Those that the interpreter of a captured program runs itself, instead of calling them."""
AUTOGRAD_MODULES = frozenset(row.autograd_module for row in TABLE.values() if row.autograd_module)
