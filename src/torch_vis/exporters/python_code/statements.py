"""Graph modules as classes of Python text: one for each, those of higher-order operators nested."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.errors import UsageError

KNOWN_SPACES = frozenset(
    {"aten", "prim", "prims", "higher_order", "_quantized", "quantized", "inductor", "profiler"}
)
BUILTINS = {
    "inf": "from math import inf",
    "nan": "from math import nan",
    "NoneType": "NoneType = type(None)",
    "device": "from torch import device",
    "fx_pytree": "import torch.fx._pytree as fx_pytree",
    "pytree": "import torch.utils._pytree as pytree",
}


class Code:
    """The text of a program's classes, and what it needs: imports, tensors, libraries."""

    def __init__(self) -> None:
        self.classes: list[str] = []
        self.imports: set[str] = set()
        self.tensors: dict[str, torch.Tensor] = {}
        self.libraries: set[str] = set()

    def add(self, module: fx.GraphModule, name: str) -> None:
        """Write a graph module as the class ``name``, after the classes of the graphs it calls."""
        order: list[tuple[fx.GraphModule, str, dict[str, str]]] = []
        waiting = [(module, name)]
        while waiting:
            graph, title = waiting.pop()
            children = {
                target: f"{title}_{re.sub(r'[^0-9a-zA-Z_]', '_', target)}"
                for target, part in _attributes(graph).items()
                if isinstance(part, fx.GraphModule)
            }
            order.append((graph, title, children))
            waiting.extend((_attribute(graph, target), child) for target, child in children.items())
        for graph, title, children in reversed(order):
            self._write(graph, title, children)

    def _write(self, module: fx.GraphModule, name: str, children: dict[str, str]) -> None:
        lines = [
            f"class {name}(torch.nn.Module):",
            "    def __init__(self, weights):",
            "        super().__init__()",
        ]
        for target, part in _attributes(module).items():
            if isinstance(part, fx.GraphModule):
                lines.append(f"        put(self, {target!r}, {children[target]}(weights))")
            elif isinstance(part, torch.Tensor):
                self.tensors[f"{name}.{target}"] = part
                lines.append(f"        put(self, {target!r}, weights[{f'{name}.{target}'!r}])")
            else:
                lines.append(f"        put(self, {target!r}, {self._literal(target, part)})")
        code = module.graph.python_code("self")
        self._import(code.globals, code.src)
        body = "\n".join(f"    {line}" if line.strip() else "" for line in code.src.strip("\n").splitlines())
        self.classes.append("\n".join([*lines, "", body, ""]))

    def _literal(self, target: str, part: Any) -> str:
        """What a graph holds beside tensors and graphs, as an expression."""
        if isinstance(part, (type(None), bool, int, float, str)):
            return repr(part)
        if not isinstance(part, pytree.TreeSpec):
            raise UsageError(_refusal(target, part))
        self.imports.add(BUILTINS["pytree"])
        function = getattr(getattr(part.context, "value", None), "func", None)
        if function is None:
            try:
                return f"pytree.treespec_loads({pytree.treespec_dumps(part)!r})"
            except NotImplementedError as error:
                raise UsageError(_refusal(target, part)) from error
        name = f"called_{function.__name__}"  # a function that is an argument of flat_apply, wrapped as a treespec
        self.imports.add(self._import_line(name, function))
        self.imports.add("from torch._higher_order_ops.flat_apply import _ConstantFunction")
        return f"pytree.tree_structure(_ConstantFunction({name}))"

    def _import(self, names: dict[str, Any], source: str) -> None:
        for name, item in names.items():
            if name != "torch" and re.search(rf"\b{re.escape(name)}\b", source):
                self.imports.add(BUILTINS.get(name) or self._import_line(name, item))
        spaces = set(re.findall(r"\btorch\.ops\.(\w+)\.", source)) - KNOWN_SPACES
        self.libraries |= {f"the library that registers torch.ops.{space}" for space in spaces}

    def _import_line(self, name: str, item: Any) -> str:
        module = getattr(item, "__module__", None)
        path = str(getattr(item, "__qualname__", getattr(item, "__name__", "")))
        found: Any = sys.modules.get(module or "")
        for part in path.split("."):
            found = getattr(found, part, None)
        if module is None or found is not item:
            raise UsageError(
                f"the program calls {item!r}, which no import leads to; make it a function of a module, or trace with "
                "via='export'"
            )
        top = module.partition(".")[0]
        if top != "torch" and top not in sys.stdlib_module_names:
            self.libraries.add(f"the module {module}")
        head, _, rest = path.partition(".")
        if rest:
            return f"import {module}\n{name} = {module}.{path}"
        return f"from {module} import {head} as {name}"


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    """What a graph takes from its module, by the name it is taken under."""
    found = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            found[str(node.target)] = _attribute(module, str(node.target))
    return found


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _refusal(target: str, part: Any) -> str:
    what = (
        f"calls {target!r}, a whole {type(part).__name__}"
        if isinstance(part, torch.nn.Module)
        else (f"holds {target!r}, a {type(part).__name__}")
    )
    return (
        f"the program {what}, which cannot be written as Python; trace with via='export', which opens modules"
    )
