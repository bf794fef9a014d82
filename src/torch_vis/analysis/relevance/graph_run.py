"""A graph module run node by node, with the value of every node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import fx

Values = dict[fx.Node, Any]


def run_graph(
    module: fx.GraphModule, inputs: Sequence[Any], keep: Collection[fx.Node] | None = None
) -> Values:
    """The value of every node, or of those in ``keep``, on flat inputs; that of the output node is what it returns.

    >>> from operator import mul
    >>> module = fx.symbolic_trace(lambda x: mul(x, 3) + 1)
    >>> list(run_graph(module, [2]).values())
    [2, 6, 7, 7]
    """
    interpreter = _ValueInterpreter(module, keep)
    interpreter.run(*inputs, enable_io_processing=False)
    return interpreter.env


class _ValueInterpreter(fx.Interpreter):
    """Calls the operators as they are in the graph, without bookkeeping for tracebacks, which costs more."""

    def __init__(self, module: fx.GraphModule, keep: Collection[fx.Node] | None) -> None:
        super().__init__(module, garbage_collect_values=keep is not None)
        self.extra_traceback = False
        if keep is not None:
            self.user_to_last_uses = {
                user: [node for node in nodes if node not in keep]
                for user, nodes in self.user_to_last_uses.items()
            }

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; an error names it."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        try:
            return getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in node {n.name!r}: {n.target}")
            raise
