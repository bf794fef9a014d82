"""What operations, modules and loops are called: one name each, on the page, in figures, tables, reports and files."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.repeats import generations
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import split_number, syntax_of
from torch_vis.graph.tree import inner_path

# What a program calls the operators that torch has a private name for, where no rule below gives it.
SPOKEN = {
    "_local_scalar_dense": "item",
    "_to_copy": "to",
    "_unsafe_view": "view",
    "_reshape_alias": "reshape",
    "_native_multi_head_attention": "multi_head_attention",
    "_transformer_encoder_layer_fwd": "transformer_encoder_layer",
    "_thnn_fused_lstm_cell": "lstm_cell",
    "_thnn_fused_gru_cell": "gru_cell",
    "nll_loss2d_forward": "nll_loss",
    "nll_loss2d_backward": "nll_loss_backward",
}
RULES = (
    (re.compile(r"^_scaled_dot_product_\w+?_attention(_for_cpu)?"), "scaled_dot_product_attention"),
    (re.compile(r"^_?(?:native|cudnn|miopen|mkldnn)_(?=[a-z])"), ""),
    # The families of fused kernels are called by these names in programs too.
    (re.compile(r"^_(?!foreach_|fused_|_)(?=[a-z])"), ""),
    (re.compile(r"_(?:with_indices|legit_no_training|legit|no_stats)(?=_|$)"), ""),
    (re.compile(r"_backward_data$"), "_backward"),
    (re.compile(r"(?<=[a-z])_forward$"), ""),
)
OUTSIDE = "outside any module"
LONGEST_HEAD = 48
MOST_RUNS = 4


@cache
def op_label(op: str) -> str:
    """The name that a program has for an operator; in-place operators keep their underscore.

    >>> op_label("aten::_local_scalar_dense"), op_label("aten::max_pool2d_with_indices"), op_label("aten::add_.Tensor")
    ('item', 'max_pool2d', 'add_')
    >>> op_label("aten::_softmax"), op_label("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    ('softmax', 'scaled_dot_product_attention_backward')
    """
    name = short_name(op)
    if name in SPOKEN:
        return SPOKEN[name]
    for pattern, text in RULES:
        name = pattern.sub(text, name)
    return name


def place_label(graph: Graph, scope: int) -> str:
    """Where an operation ran: the path of the module, the class of the outermost, or that it was in none."""
    _, type, kind = graph.modules[graph.scope_module[scope]]
    return graph.scope_paths[scope] or (OUTSIDE if kind == "run" or not type else type)


def module_label(path: str, type: str, above: str) -> str:
    """A module's path below the module around it; before a bare number comes the class.

    >>> module_label("features.0", "Conv2d", "features"), module_label("encoder.layer.3", "BertLayer", "encoder")
    ('Conv2d 0', 'layer.3')
    >>> module_label("", "ResNet", ""), module_label("head", "Linear", "")
    ('ResNet', 'head')
    """
    if not path:
        return type
    name = inner_path(path, above)
    return f"{type} {name}" if name[:1].isdigit() else name


def span_label(labels: Iterable[str]) -> str:
    """One name for several that differ in a number.

    >>> span_label(["layer.0", "layer.1", "layer.2"]), span_label(["Conv2d 0", "Conv2d 2"]), span_label(["fc", "fc"])
    ('layer.0–2', 'Conv2d 0, 2', 'fc')
    """
    distinct = list(dict.fromkeys(labels))
    if len(distinct) == 1:
        return distinct[0]
    numbered = [(stem, number) for stem, number in map(split_number, distinct) if number is not None]
    if not numbered:
        return distinct[0]
    return numbered[0][0] + ranges(sorted({number for _, number in numbered}))


def ranges(numbers: Sequence[int]) -> str:
    """Growing numbers in words as few as they can be.

    >>> ranges([0, 1, 2, 3]), ranges([0, 2]), ranges([0, 1, 2, 5]), ranges(range(0, 24, 2))
    ('0–3', '0, 2', '0–2, 5', '0, 2 … 22')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(texts) if len(texts) <= MOST_RUNS else f"{texts[0]}, {texts[1]} … {texts[-1]}"


class ScopeLabels:
    """What every call of a module is called inside the module that it is in."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self.index = self._scopes()
        for generation in generations(graph):
            for position, scope in enumerate(generation.scopes.tolist()):
                label = self.texts[self.index[scope]]
                self.index[scope] = self.number(f"{label} {'decode' if position else 'prefill'}")

    def number(self, text: str) -> int:
        """The row of a text in ``texts``."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]

    def of(self, scope: int) -> str:
        """The label of a call."""
        return self.texts[int(self.index[scope])]

    def element(self, element: int) -> str:
        """The label of an operation, or of ``~scope``."""
        graph = self.graph
        return op_label(graph.calls[graph.node_call[element]].op) if element >= 0 else self.of(~element)

    def step(self, rows: Any) -> str:
        """What a repeated step of several elements is called; ``rows`` has one row of elements for each time.

        A loop of the program is called after its line, and one that calls a single module, or modules that differ in
        their number alone, after those. An optimizer's step is called after what it does to each parameter.
        """
        graph, first = self.graph, rows[0]
        operations = first[first >= 0]
        calls = ~first[first < 0]
        if not len(calls) and (graph.node_phase[operations] == Phase.OPTIMIZER).all():
            return "update of one parameter"
        of_modules = [scope for scope in calls.tolist() if self._is_module(scope)]
        modules = {int(graph.scope_module[scope]) for scope in of_modules}
        stems = {split_number(self.of(scope))[0] for scope in of_modules}
        if len(modules) == 1 or (len(stems) == 1 and len(of_modules) == len(first)):
            scopes = (~element for row in rows for element in row.tolist() if element < 0)
            return span_label(self.of(scope) for scope in scopes if self._is_module(scope))
        loop = loop_of(graph, operations) or loop_of(graph, self._begun(operations, calls))
        if loop is not None:
            return loop
        names = Counter(self.element(element) for element in first.tolist())
        return ", ".join(name for name, _ in names.most_common(3)) + (" …" if len(names) > 3 else "")

    def _begun(self, operations: Any, calls: Any) -> Any:
        """Operations and the first of each call; in backward, those whose gradients they are."""
        graph = self.graph
        enter, order = self._entered
        at = np.searchsorted(enter, graph.tree.enter[calls])
        ends = np.searchsorted(enter, graph.tree.leave[calls])
        nodes = np.concatenate([operations, order[at[at < ends]]]).astype(np.int64)
        forward = graph.node_link[nodes]
        return np.where((graph.node_phase[nodes] == Phase.BACKWARD) & (forward >= 0), forward, nodes)

    @cached_property
    def _entered(self) -> tuple[Any, Any]:
        """When the scope of each operation was entered, ascending, and the operations in that order."""
        inside = self.graph.tree.enter[self.graph.node_scope]
        order = np.argsort(inside, kind="stable")
        return inside[order], order

    def _is_module(self, scope: int) -> bool:
        return self.graph.modules[self.graph.scope_module[scope]].kind == "module"

    def _scopes(self) -> Any:
        graph = self.graph
        paths = graph.scope_paths
        known: dict[tuple[int, str], int] = {}
        result = np.zeros(len(graph.scope_call), dtype=np.int64)
        above: list[str] = []
        for scope, (parent, module) in enumerate(
            zip(graph.scope_parent.tolist(), graph.scope_module.tolist())
        ):
            path, type, kind = graph.modules[module]
            outer = above[parent] if parent >= 0 else ""
            # What is called inside a function is named as in the module that calls the function.
            above.append(paths[scope] if kind == "module" and path else outer)
            key = (module, outer)
            if key not in known:
                text = function_label(path, type) if kind == "function" else module_label(path, type, outer)
                known[key] = self.number(text)
            result[scope] = known[key]
        return result


def function_label(path: str, type: str) -> str:
    """A call of a function by the function's own name.

    A captured program calls a node by its variable and has the function as class; a recorded call has its full name as
    path.

    >>> function_label("torch.nn.functional.scaled_dot_product_attention", "function")
    'scaled_dot_product_attention'
    """
    name = type if "." in type else path
    return re.sub(r"^aten\.(\w+)\.\w+$", r"\1", name).rpartition(".")[2]


class Loop(NamedTuple):
    """A loop in a source file: its first and last line, and its head as the program writes it."""

    first: int
    last: int
    head: str


def loop_of(graph: Graph, nodes: Any) -> str | None:
    """The innermost loop of the program that operations were run in, by its head and line; None where none is known."""
    sites = {int(site) for site in graph.node_site[nodes].tolist() if site >= 0}
    files = {graph.sites[site].file for site in sites}
    if len(files) != 1:
        return None
    (file,) = files
    lines = [graph.sites[site].line for site in sites]
    around = [loop for loop in loops_in(file) if loop.first <= min(lines) and max(lines) <= loop.last]
    if not around:
        return None
    loop = max(around, key=lambda loop: (loop.first, -loop.last))
    return f"{loop.head} · {PurePath(file).name}:{loop.first}"


@lru_cache(maxsize=256)
def loops_in(file: str) -> tuple[Loop, ...]:
    """The loops of a source file; none where it is not there or is no Python."""
    source, tree = syntax_of(file)
    result = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            head = " ".join((ast.get_source_segment(source, node) or "").split("\n", 1)[0].split())
            result.append(Loop(node.lineno, node.end_lineno or node.lineno, _head(head)))
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            generator = node.generators[0]
            head = f"for {ast.unparse(generator.target)} in {ast.unparse(generator.iter)}"
            result.append(Loop(node.lineno, node.end_lineno or node.lineno, _head(head)))
    return tuple(result)


def _head(text: str) -> str:
    text = text.removesuffix(":").strip()
    return text if len(text) <= LONGEST_HEAD else f"{text[: LONGEST_HEAD - 1]}…"
