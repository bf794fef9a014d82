"""Captured programs as Python files that run: the graphs as classes, the weights in a safetensors file beside them."""

from __future__ import annotations

import inspect
import os
import pprint
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.errors import UsageError, optional
from torch_vis.exporters.recorded_code import LITERALS, RecordedProgram, plan_of
from torch_vis.graph.io.atomic import replacing, write_text

SIMPLE = re.compile(
    r"^L\['(\w+)'\]((\[('[^']*'|-?\d+)\])|(\.size\(\)\[\d+\])|(\.stride\(\)\[\d+\])|(\.\w+(?!\w*\()))*$"
)


class Draft:
    """A file in the making: what its docstring says, its tables, and its tensors."""

    def __init__(self) -> None:
        self.code = Code()
        self.sentences: list[str] = []
        self.tables: list[str] = []
        self.runtime: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def table(self, name: str, content: Any) -> None:
        """A literal of the file."""
        self.tables.append(f"{name} = {pprint.pformat(content, width=116, compact=True, sort_dicts=False)}")

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write both files, each whole; the code last, so that it never stands beside weights of another program."""
        weights = lay_out({**self.tensors, **self.code.tensors})
        self.table("WEIGHTS", {name: tuple(location) for name, location in weights.locations.items()})
        needs = sorted({"torch", "safetensors"} | self.code.libraries)
        sentences = [
            *self.sentences,
            f"Needs {', '.join(needs[:-1])} and {needs[-1]}. Random operations draw from torch's generator.",
        ]
        imports = ["import os", "", "import torch", "from safetensors.torch import load_file"]
        imports += sorted(self.code.imports)
        head = '"""' + "\n\n".join(sentences).replace("\\", "\\\\").replace('"""', "'''") + '\n"""'
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
        write_text(path, whole)


def save_program(
    path: str | os.PathLike[str],
    *,
    modules: Sequence[fx.GraphModule],
    program: Any,
    output: Any,
    run: Callable[[], RecordedProgram] | None = None,
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
    input_index: dict[str, int] = {}
    generators: dict[str, str] = {}
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            input_index[spec.arg.name] = len(rows)
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
    draft.table("RESULTS", [_result(spec, input_index) for spec in signature.output_specs])
    draft.table("STATE", sorted(set(draft.tensors) - set(generators)))
    draft.table("GENERATORS", generators)
    draft.sentences += [
        "A model as torch.export captured it, written by torch_vis.\n\n    model = load()\n    output = model("
        + ", ".join(_call(exported))
        + ")",
        *_sizes(exported),
    ]
    if renamed:
        draft.sentences.append(
            f"It returned {', '.join(sorted(renamed))}; this returns plain dictionaries with the same names."
        )
    draft.runtime += [LOADING, CONTAINERS, EXPORTED]


def _result(spec: Any, input_index: dict[str, int]) -> tuple[str, Any]:
    kind = spec.kind.name
    if kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
        return "output", None
    if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
        return "state", spec.target
    if kind == "USER_INPUT_MUTATION":
        return "input", input_index[spec.target]
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


def save_recorded(path: str | os.PathLike[str], run: RecordedProgram) -> None:
    """Write a run that went through no compiler."""
    _check_name(path)
    draft = Draft()
    draft.sentences.append("A model as it ran, operation by operation, written by torch_vis.")
    draft.runtime += [LOADING, CONTAINERS]
    _recorded(draft, run)
    draft.write(path)


def _check_name(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix != ".py":
        raise UsageError(f"a saved program is a Python file: its name ends in .py, not {Path(path).suffix!r}")


def _recorded(draft: Draft, run: RecordedProgram) -> None:
    """Add the recorded run as the model of the file."""
    for name, content in run.tables.items():
        draft.table(name, content)
    draft.table("STATE", sorted(run.tensors))
    draft.tensors.update(run.tensors)
    draft.sentences.append(
        "    model = load()\n    output = model(...)  # with the arguments of the recorded run\n\n"
        "What the program decided by values is as it was recorded: inputs that decide otherwise are refused. It\n"
        "gives no gradients."
    )
    if run.renamed:
        named = ", ".join(sorted(run.renamed))
        draft.sentences.append(f"It returned {named}; this returns plain dictionaries with the same names.")
    draft.code.imports.add("import warnings")
    draft.runtime += [run.code, RECORDED]


def _partitions(
    draft: Draft,
    modules: Sequence[fx.GraphModule],
    program: Any,
    output: Any,
    run: Callable[[], RecordedProgram] | None,
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
    draft.runtime += [LOADING, CONTAINERS, PARTITIONED]
    number = f"{len(modules)} partition{'' if len(modules) == 1 else 's'}"
    draft.sentences.append(f"A program of {number} as Dynamo captured it, written by torch_vis.")
    whole = _whole(modules, program, output)
    if whole is None:
        draft.sentences.append(
            "PARTITIONS lists the inputs of each: its name, its weight (None for what the caller gives), the\n"
            "expression it stands for, its shape and its type.\n\n"
            "    parts = load_parts()\n    outputs = parts[0](*inputs)"
        )
        draft.runtime.append(PARTS)
        if run is not None:
            _recorded(draft, run())
        else:
            draft.sentences.append("The code between partitions is not in this file.")
            draft.runtime.append(LONE_PART if len(modules) == 1 else SEVERAL_PARTS)
        return
    draft.sentences.append(
        "    model = load()\n    output = model(...)  # with the arguments of the captured model"
    )
    for name, content in whole.pop("tables").items():
        draft.table(name, content)
    if whole["renamed"]:
        named = ", ".join(sorted(whole["renamed"]))
        draft.sentences.append(f"It returned {named}; this returns plain dictionaries with the same names.")
    draft.runtime += [whole["inputs"], WHOLE]


def _name_weights(draft: Draft, module: fx.GraphModule, name: str) -> dict[str, str]:
    """The names under which a partition's weights are saved: their paths, as long as those mean one tensor each."""
    paths = {}
    for key, tensor in module.meta.get("weights", {}).items():
        path = module.meta["weight_paths"][key]
        if draft.tensors.setdefault(path, tensor) is not tensor:
            path = f"{name}.{key}"
            draft.tensors[path] = tensor
        paths[key] = path
    return paths


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
    matches = [SIMPLE.match(expression) for expression in expressions]
    roots = {match[1] for match in matches if match is not None}
    names = _argument_names(program.signature, roots, state)
    renamed: set[str] = set()
    results = _results(modules[0], output, renamed)
    if None in matches or names is None or results is None:
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
        id(ref()): index for index, ref in enumerate(module.meta.get("returned", ())) if ref is not None
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
        # a function that is an argument of flat_apply, wrapped as a treespec
        name = f"called_{function.__name__}"
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
        target: Any = sys.modules.get(module or "")
        for part in path.split("."):
            target = getattr(target, part, None)
        if module is None or target is not item:
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
    attributes = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = _attribute(module, str(node.target))
    return attributes


def _attribute(module: torch.nn.Module, path: str) -> Any:
    item: Any = module
    for part in path.split("."):
        item = getattr(item, part)
    return item


def _refusal(target: str, part: Any) -> str:
    what = (
        f"calls {target!r}, a whole {type(part).__name__}"
        if isinstance(part, torch.nn.Module)
        else (f"holds {target!r}, a {type(part).__name__}")
    )
    return (
        f"the program {what}, which cannot be written as Python; trace with via='export', which opens modules"
    )


PLAIN = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)


class TensorLocation(NamedTuple):
    """Where a tensor lies: its block, its type there, offset, shape and strides in elements, and what it is."""

    block: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    kind: str  # "parameter", "frozen" (a parameter without gradient) or "tensor"


class Weights(NamedTuple):
    """Blocks of memory by name, and the location of each tensor in them."""

    blocks: dict[str, torch.Tensor]
    locations: dict[str, TensorLocation]


def lay_out(tensors: Mapping[str, torch.Tensor]) -> Weights:
    """Find the blocks that tensors share."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        storage = tensor.untyped_storage()
        key = (str(storage.device), storage.data_ptr()) if storage.nbytes() else ("empty", name)
        groups.setdefault(key, []).append(name)
    weights = Weights({}, {})
    for names in groups.values():
        _lay_group({name: plain[name] for name in names}, weights, tensors)
    return Weights(weights.blocks, {name: weights.locations[name] for name in tensors})


def _lay_group(
    group: Mapping[str, torch.Tensor], weights: Weights, originals: Mapping[str, torch.Tensor]
) -> None:
    """One block for the tensors that lie in one storage."""
    first_name, first = next(iter(group.items()))
    alike = {(t.dtype, t.storage_offset(), t.shape, t.stride()) for t in group.values()}
    as_bytes = len({t.dtype for t in group.values()}) > 1 or str(first.dtype)[6:] not in PLAIN
    unit = 1 if as_bytes else first.dtype.itemsize
    start = min(int(t.storage_offset()) * t.dtype.itemsize for t in group.values()) // unit
    stop = max(_end(t) for t in group.values()) // unit
    dtype = torch.uint8 if as_bytes else first.dtype
    if len(alike) == 1 and first.is_contiguous() and not as_bytes:
        block = first.detach()
    else:
        block = torch.empty(0, dtype=dtype, device=first.device).set_(
            first.untyped_storage(), start, (stop - start,), (1,)
        )
    weights.blocks[first_name] = block.cpu().clone(memory_format=torch.contiguous_format)
    for name, tensor in group.items():
        item = tensor.dtype.itemsize
        if (start * unit) % item:
            raise UsageError(
                f"{name} cannot be saved: it shares memory with others at an offset its type does not fit"
            )
        original = originals[name]
        kind = "tensor"
        if isinstance(original, torch.nn.Parameter):
            kind = "parameter" if original.requires_grad else "frozen"
        offset = int(tensor.storage_offset()) - start * unit // item
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        weights.locations[name] = TensorLocation(
            first_name, str(tensor.dtype)[6:], offset, shape, stride, str(tensor.device), kind
        )


def _end(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return int(tensor.storage_offset()) * tensor.dtype.itemsize
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (int(tensor.storage_offset()) + reach + 1) * tensor.dtype.itemsize


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as plain memory, or the reason why there is none."""
    what = type(tensor).__name__
    if hasattr(tensor, "__tensor_flatten__") or what == "FakeTensor":
        raise UsageError(f"{name} cannot be saved: a {what} has no plain memory of its own")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_mkldnn:
        raise UsageError(
            f"{name} cannot be saved: safetensors has no form for a tensor that is sparse or quantized"
        )
    if tensor.device.type == "meta":
        raise UsageError(f"{name} cannot be saved: it is on the meta device and holds no data")
    return tensor.detach().resolve_conj().resolve_neg()


def write_blocks(path: str | os.PathLike[str], blocks: Mapping[str, torch.Tensor], note: str) -> None:
    """Write the blocks to a safetensors file, whole or not at all."""
    with optional("safetensors"):
        from safetensors.torch import save
    with replacing(path) as file:
        file.write(save(dict(blocks), metadata={"written by": "torch_vis", "holds": note}))


LOADING = '''
def load_weights(path=None):
    """The tensors of this program, from the file beside it: tied ones are one tensor, views share memory."""
    blocks = load_file(path or os.path.splitext(__file__)[0] + ".safetensors")
    blocks = {name: block.clone() for name, block in blocks.items()}  # memory aligned as torch aligns it
    tensors, moved, weights = {}, {}, {}
    for name, place in WEIGHTS.items():
        if place not in tensors:
            block, dtype, offset, shape, stride, device, kind = place
            if (block, device) not in moved:
                moved[block, device] = blocks[block].to(device)
            tensor = moved[block, device].view(-1).view(getattr(torch, dtype)).as_strided(shape, stride, offset)
            if kind != "tensor":
                tensor = torch.nn.Parameter(tensor, requires_grad=kind == "parameter")
            tensors[place] = tensor
        weights[name] = tensors[place]
    return weights


def put(module, path, item):
    """Set an attribute by its path, with modules on the way, as ``state_dict`` names it."""
    *parents, name = path.split(".")
    for part in parents:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module._modules[part]
    if isinstance(item, torch.nn.Parameter):
        module.register_parameter(name, item)
    elif isinstance(item, torch.nn.Module):
        module.add_module(name, item)
    elif isinstance(item, torch.Tensor):
        module.register_buffer(name, item)
    else:
        setattr(module, name, item)


def get(module, path):
    for part in path.split("."):
        module = getattr(module, part)
    return module
'''

CONTAINERS = '''
def flatten(item, plan, place="the inputs"):
    """The leaves of nested containers that have to be as they were captured."""
    kind = plan[0]
    if kind == "leaf":
        return [item]
    parts = plan[-1]
    if kind == "dict":
        if isinstance(item, dict) and set(item) - set(plan[1]):
            raise TypeError(f"{place}: {sorted(map(str, set(item) - set(plan[1])))} not expected, but {list(plan[1])}")
        leaves = []
        for key, part in zip(plan[1], parts):
            try:
                below = item[key] if hasattr(item, "keys") else getattr(item, key)
            except (KeyError, AttributeError):
                raise TypeError(f"{place}: {key!r} is missing") from None
            leaves += flatten(below, part, f"{place}.{key}")
        return leaves
    if not isinstance(item, (tuple, list)) or len(item) != len(parts):
        given = f"{len(item)} given" if isinstance(item, (tuple, list)) else f"{type(item).__name__} given"
        raise TypeError(f"{place}: {len(parts)} expected, {given}")
    return [leaf for i, part in enumerate(parts) for leaf in flatten(item[i], part, f"{place}.{i}")]


def unflatten(leaves, plan):
    """Nested containers from an iterator of leaves."""
    if plan[0] == "leaf":
        return next(leaves)
    parts = [unflatten(leaves, part) for part in plan[-1]]
    return dict(zip(plan[1], parts)) if plan[0] == "dict" else tuple(parts) if plan[0] == "tuple" else parts
'''

EXPORTED = '''
class Model(torch.nn.Module):
    """The whole model, called as it was when it was captured."""

    def __init__(self, weights):
        super().__init__()
        for name, item in weights.items():
            if name in STATE:
                put(self, name, item)
        for name, device in GENERATORS.items():
            put(self, name, torch.Generator(device))
            get(self, name).set_state(weights[name])
        object.__setattr__(self, "_graph", Graph(weights))

    def forward(self, *args, **kwargs):
        users = iter(flatten((args, kwargs), INPUTS))
        inputs = []
        for kind, known in SIGNATURE:
            if kind == "state":
                inputs.append(get(self, known))
                continue
            given = next(users)
            if kind == "constant" and given != known:
                raise ValueError(f"captured with {known!r}; {given!r} is another program and needs its own capture")
            inputs.append(given)
        outputs = []
        for (kind, target), result in zip(RESULTS, self._graph(*inputs)):
            if kind == "output":
                outputs.append(result)
            elif kind != "nothing":
                with torch.no_grad():
                    (get(self, target) if kind == "state" else inputs[target]).copy_(result)
        return unflatten(iter(outputs), OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''

PARTITIONED = '''
class Partition(torch.nn.Module):
    """One graph with its weights: called with the inputs that ``PARTITIONS`` lists for it, in that order."""

    def __init__(self, number, weights):
        super().__init__()
        self.number = number
        self.graph = GRAPHS[number](weights)
        self.held = torch.nn.Module()
        for _, name, *_ in PARTITIONS[number]:
            if name is not None:
                put(self.held, name, weights[name])

    def forward(self, *inputs):
        wanted = [row for row in PARTITIONS[self.number] if row[1] is None]
        if len(inputs) != len(wanted):
            names = ", ".join(row[0] for row in wanted)
            raise TypeError(f"partition {self.number} takes {len(wanted)} inputs ({names}), not {len(inputs)}")
        given, rows = iter(inputs), PARTITIONS[self.number]
        return self.graph(*(next(given) if row[1] is None else get(self.held, row[1]) for row in rows))
'''

PARTS = '''
def load_parts(path=None):
    """The partitions with their weights, in the order in which they ran."""
    weights = load_weights(path)
    return [Partition(number, weights) for number in range(len(PARTITIONS))]
'''

LONE_PART = '''
def load(path=None):
    """The partition with its weights."""
    return load_parts(path)[0]
'''

SEVERAL_PARTS = """
load = load_parts
"""

RECORDED = '''
def decided(now, was, place):
    """See whether a value that the program looked at is what it was: another truth is another way through it."""
    if now == was or (now != now and was != was):
        return
    told = f"the value looked at in {place} was {was!r} when this was recorded and is {now!r} now"
    if isinstance(was, bool):
        raise RuntimeError(f"{told}: other operations would run than those in this file")
    warnings.warn(f"{told}: what the program decided by it is as recorded", stacklevel=4)


def fresh(result, written):
    """The tensors that an operator made, without those that it wrote to."""
    if isinstance(result, torch.Tensor):
        return [] if any(result is tensor for tensor in written) else [result]
    return [tensor for part in result or () for tensor in fresh(part, written)]


class Model(torch.nn.Module):
    """The recorded run: every operation as it ran, called as it was when it was recorded. It gives no gradients."""

    def __init__(self, weights):
        super().__init__()
        for name in STATE:
            put(self, name, weights[name])

    def forward(self, *args, **kwargs):
        leaves = zip(LEAVES, flatten((args, kwargs), INPUTS))
        given = {name: leaf.detach() for name, leaf in leaves if name is not None}
        with torch.no_grad():
            results = recorded({name: get(self, name) for name in STATE}, given)
        return unflatten((results[known] if kind == "graph" else known for kind, known in RESULTS), OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''

WHOLE = '''
def bind(args, kwargs):
    """The arguments under the names that the model gives them."""
    if len(args) > len(NAMES) and REST is None:
        raise TypeError(f"{len(NAMES)} positional arguments at most, {len(args)} given")
    given = dict(zip(NAMES, args))
    if REST is not None:
        given[REST] = args[len(NAMES) :]
    named = {name: item for name, item in kwargs.items() if name in NAMES or name in NAMED}
    others = {name: item for name, item in kwargs.items() if name not in named}
    if others and OTHERS is None:
        raise TypeError(f"no argument {min(others)!r}")
    return {**given, **named, **({OTHERS: others} if OTHERS is not None else {})}


class Model(torch.nn.Module):
    """The whole model, called as it was when it was captured."""

    def __init__(self, weights):
        super().__init__()
        self.partition = Partition(0, weights)

    def forward(self, *args, **kwargs):
        try:
            inputs = inputs_of(bind(args, kwargs))
        except (KeyError, IndexError) as missing:
            raise TypeError(f"captured with an argument that is missing here: {missing}") from None
        results = self.partition(*inputs)
        leaves = (results[known] if kind == "graph" else known for kind, known in RESULTS)
        return unflatten(leaves, OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''
