"""Captured programs as Python files that run: the graphs as classes, the weights in a safetensors file beside them."""

from __future__ import annotations

import inspect
import os
import pprint
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.errors import UsageError
from torch_vis.exporters.python_code import text
from torch_vis.exporters.python_code.containers import LITERALS, plan_of
from torch_vis.exporters.python_code.recorded import Recorded
from torch_vis.exporters.python_code.statements import Code
from torch_vis.exporters.python_code.weights import lay_out, write_blocks
from torch_vis.graph.io.atomic import replacing

SIMPLE = re.compile(
    r"^L\['(\w+)'\]((\[('[^']*'|-?\d+)\])|(\.size\(\)\[\d+\])|(\.stride\(\)\[\d+\])|(\.\w+(?!\w*\()))*$"
)


class Draft:
    """A file in the making: what its docstring says, its tables, and its tensors."""

    def __init__(self) -> None:
        self.code = Code()
        self.told: list[str] = []
        self.tables: list[str] = []
        self.runtime: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def table(self, name: str, content: Any) -> None:
        """A literal of the file."""
        self.tables.append(f"{name} = {pprint.pformat(content, width=116, compact=True, sort_dicts=False)}")

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write both files, each whole; the code last, so that it never stands beside weights of another program."""
        weights = lay_out({**self.tensors, **self.code.tensors})
        self.table("WEIGHTS", {name: tuple(place) for name, place in weights.places.items()})
        needs = sorted({"torch", "safetensors"} | self.code.libraries)
        told = [
            *self.told,
            f"Needs {', '.join(needs[:-1])} and {needs[-1]}. Random operations draw from torch's generator.",
        ]
        imports = ["import os", "", "import torch", "from safetensors.torch import load_file"]
        imports += sorted(self.code.imports)
        head = '"""' + "\n\n".join(told).replace("\\", "\\\\").replace('"""', "'''") + '\n"""'
        parts = [
            head,
            "from __future__ import annotations",
            "\n".join(imports),
            *self.tables,
            *self.code.classes,
        ]
        whole = "\n\n".join([*parts, *(part.strip("\n") for part in self.runtime)]) + "\n"
        compile(whole, os.fspath(path), "exec")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_blocks(target.with_suffix(".safetensors"), weights.blocks, target.name)
        with replacing(path) as file:
            file.write(whole.encode())


def save_program(
    path: str | os.PathLike[str],
    *,
    modules: Sequence[fx.GraphModule],
    program: Any,
    output: Any,
    run: Callable[[], Recorded] | None = None,
) -> None:
    """Write graph modules, and the program that they are part of, as Python.

    ``run`` gives the recorded run, for a program that the graph modules are only parts of.
    """
    _check_name(path)
    draft = Draft()
    if program is not None and program.exported is not None:
        _exported(draft, program.exported)
    else:
        _partitions(draft, modules, program, output, run)
    draft.write(path)


# ---------------------------------------------------------------- export


def _exported(draft: Draft, exported: Any) -> None:
    renamed: set[str] = set()
    signature = exported.graph_signature
    draft.code.add(exported.graph_module, "Graph")
    draft.table("INPUTS", plan_of(exported.call_spec.in_spec))
    draft.table("OUTPUTS", plan_of(exported.call_spec.out_spec, renamed))
    rows: list[tuple[str, Any]] = []
    places: dict[str, int] = {}
    generators: dict[str, str] = {}
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            places[spec.arg.name] = len(rows)
            fixed = type(spec.arg).__name__ == "ConstantArgument"
            rows.append(
                ("constant", spec.arg.value)
                if fixed and isinstance(spec.arg.value, LITERALS)
                else ("input", None)
            )
            continue
        tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
        if isinstance(tensor, torch.Generator):
            generators[spec.target] = str(tensor.device)
            tensor = tensor.get_state()
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"{spec.target!r} is a {type(tensor).__name__} and cannot be saved beside the program"
            )
        draft.tensors[spec.target] = tensor
        rows.append(("state", spec.target))
    draft.table("SIGNATURE", rows)
    draft.table("RESULTS", [_result(spec, places) for spec in signature.output_specs])
    draft.table("STATE", sorted(set(draft.tensors) - set(generators)))
    draft.table("GENERATORS", generators)
    draft.told += [
        "A model as torch.export captured it, written by torch_vis.\n\n    model = load()\n    output = model("
        + ", ".join(_call(exported))
        + ")",
        *_sizes(exported),
    ]
    if renamed:
        draft.told.append(
            f"It returned {', '.join(sorted(renamed))}; this returns plain dictionaries with the same names."
        )
    draft.runtime += [text.LOADING, text.CONTAINERS, text.EXPORTED]


def _result(spec: Any, places: dict[str, int]) -> tuple[str, Any]:
    kind = spec.kind.name
    if kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
        return "output", None
    if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
        return "state", spec.target
    if kind == "USER_INPUT_MUTATION":
        return "input", places[spec.target]
    return "nothing", None


def _call(exported: Any) -> list[str]:
    args, kwargs = exported.example_inputs or ((), {})
    shown = [_shape(item) for item in args]
    return shown + [f"{name}={_shape(item)}" for name, item in kwargs.items()]


def _shape(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype)[6:]}{list(item.shape)}"
    return type(item).__name__


def _sizes(exported: Any) -> list[str]:
    open_ = ", ".join(map(str, exported.range_constraints))
    return (
        [f"Sizes that are left open: {open_}."] if open_ else ["All sizes are those of the captured inputs."]
    )


# ---------------------------------------------------------------- Dynamo, fx, AOT


def save_recorded(path: str | os.PathLike[str], run: Recorded) -> None:
    """Write a run that went through no compiler."""
    _check_name(path)
    draft = Draft()
    draft.told.append("A model as it ran, operation by operation, written by torch_vis.")
    draft.runtime += [text.LOADING, text.CONTAINERS]
    _recorded(draft, run)
    draft.write(path)


def _check_name(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix != ".py":
        raise UsageError(f"a saved program is a Python file: its name ends in .py, not {Path(path).suffix!r}")


def _recorded(draft: Draft, run: Recorded) -> None:
    """Add the recorded run as the model of the file."""
    for name, content in run.tables.items():
        draft.table(name, content)
    draft.table("STATE", sorted(run.tensors))
    draft.tensors.update(run.tensors)
    draft.told.append(
        "    model = load()\n    output = model(...)  # with the arguments of the recorded run\n\n"
        "What the program decided by values is as it was recorded: inputs that decide otherwise are refused. It\n"
        "gives no gradients."
    )
    if run.renamed:
        named = ", ".join(sorted(run.renamed))
        draft.told.append(f"It returned {named}; this returns plain dictionaries with the same names.")
    draft.code.imports.add("import warnings")
    draft.runtime += [run.code, text.RECORDED]


def _partitions(
    draft: Draft,
    modules: Sequence[fx.GraphModule],
    program: Any,
    output: Any,
    run: Callable[[], Recorded] | None,
) -> None:
    names = [f"Partition{number}" for number in range(len(modules))]
    tables = []
    for module, name in zip(modules, names):
        draft.code.add(module, name)
        names_of = _name_weights(draft, module, name)
        rows = [
            (node.name, names_of.get(node.name), *_known(node))
            for node in module.graph.nodes
            if node.op == "placeholder"
        ]
        tables.append(rows)
    draft.table("PARTITIONS", tables)
    draft.runtime.append("GRAPHS = (" + "".join(f"{name}, " for name in names).rstrip() + ")")
    draft.runtime += [text.LOADING, text.CONTAINERS, text.PARTITIONED]
    number = f"{len(modules)} partition{'' if len(modules) == 1 else 's'}"
    draft.told.append(f"A program of {number} as Dynamo captured it, written by torch_vis.")
    whole = _whole(modules, program, output)
    if whole is None:
        draft.told.append(
            "PARTITIONS lists the inputs of each: its name, its weight (None for what the caller gives), the\n"
            "expression it stands for, its shape and its type.\n\n"
            "    parts = load_parts()\n    outputs = parts[0](*inputs)"
        )
        draft.runtime.append(text.PARTS)
        if run is not None:
            _recorded(draft, run())
        else:
            draft.told.append("The code between partitions is not in this file.")
            draft.runtime.append(text.LONE_PART if len(modules) == 1 else text.SEVERAL_PARTS)
        return
    draft.told.append(
        "    model = load()\n    output = model(...)  # with the arguments of the captured model"
    )
    for name, content in whole.pop("tables").items():
        draft.table(name, content)
    if whole["renamed"]:
        named = ", ".join(sorted(whole["renamed"]))
        draft.told.append(f"It returned {named}; this returns plain dictionaries with the same names.")
    draft.runtime += [whole["inputs"], text.WHOLE]


def _name_weights(draft: Draft, module: fx.GraphModule, name: str) -> dict[str, str]:
    """The names under which a partition's weights are saved: their paths, as long as those mean one tensor each."""
    found = {}
    for key, tensor in module.meta.get("weights", {}).items():
        path = module.meta["weight_paths"][key]
        if draft.tensors.setdefault(path, tensor) is not tensor:
            path = f"{name}.{key}"
            draft.tensors[path] = tensor
        found[key] = path
    return found


def _known(node: fx.Node) -> tuple[Any, ...]:
    """What there is to say of a placeholder: the expression it stands for, its shape and type."""
    meta = node.meta.get("tensor_meta")
    shape = None if meta is None else tuple(s if isinstance(s, int) else str(s) for s in meta.shape)
    return node.meta.get("source"), shape, None if meta is None else str(meta.dtype)[6:]


def _whole(modules: Sequence[fx.GraphModule], program: Any, output: Any) -> dict[str, Any] | None:
    """How one partition without breaks is called with the model's own arguments; None where that is not known."""
    if len(modules) != 1 or program is None or program.breaks:
        return None
    weights = modules[0].meta.get("weights", {})
    placeholders = [node for node in modules[0].graph.nodes if node.op == "placeholder"]
    state = [str(node.meta.get("source")) for node in placeholders if node.name in weights]
    expressions = [node.meta.get("source") or "" for node in placeholders if node.name not in weights]
    found = [SIMPLE.match(expression) for expression in expressions]
    roots = {match[1] for match in found if match is not None}
    names = _argument_names(program.signature, roots, state)
    renamed: set[str] = set()
    results = _results(modules[0], output, renamed)
    if None in found or names is None or results is None:
        return None
    lines = "".join(f"        {expression},\n" for expression in expressions)
    code = f"def inputs_of(L):\n    return [\n{lines}    ]"
    return {"tables": {**names, **results}, "inputs": code, "renamed": renamed}


def _argument_names(signature: Any, roots: set[str], state: Sequence[str]) -> dict[str, Any] | None:
    """What the locals of the function that Dynamo took are called, in the order of its arguments."""
    if roots and roots <= {"args", "kwargs"} and not any(source.startswith("L['args']") for source in state):
        # Modules of torch itself: Dynamo takes a function around them that hands everything on.
        return {"NAMES": [], "NAMED": [], "REST": "args", "OTHERS": "kwargs"}
    if signature is None or not roots <= set(signature.parameters):
        return None
    kinds = inspect.Parameter

    def of(*wanted: Any) -> list[str]:
        return [name for name, parameter in signature.parameters.items() if parameter.kind in wanted]

    return {
        "NAMES": of(kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD),
        "NAMED": of(kinds.KEYWORD_ONLY),
        "REST": next(iter(of(kinds.VAR_POSITIONAL)), None),
        "OTHERS": next(iter(of(kinds.VAR_KEYWORD)), None),
    }


def _results(module: fx.GraphModule, output: Any, renamed: set[str]) -> dict[str, Any] | None:
    """Where each part of the model's output comes from: a result of the graph, or a literal."""
    returned = {
        id(ref()): place for place, ref in enumerate(module.meta.get("returned", ())) if ref is not None
    }
    leaves, spec = pytree.tree_flatten(output)
    rows: list[tuple[str, Any]] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) in returned:
            rows.append(("graph", returned[id(leaf)]))
        elif isinstance(leaf, LITERALS):
            rows.append(("literal", leaf))
        else:
            return None
    return {"RESULTS": rows, "OUTPUTS": plan_of(spec, renamed)}
