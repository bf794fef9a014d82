"""The modules of a live model as rows, and its parameters and buffers as columns along them; made to be fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.interfaces.explorer.archives import FileModule
from torch_vis.views.terminal.forest import Forest, Sharing
from torch_vis.views.terminal.measures import share

PLAIN = frozenset({torch.nn.Parameter, torch.Tensor})
STRIDED = torch.strided


def walk(model: torch.nn.Module) -> tuple[list[torch.nn.Module], dict[int, int], Forest]:
    """Every place in the tree: its module; where a module comes again, the row where it came first; the forest."""
    names: list[str] = []
    types: list[str] = []
    parents: list[int] = []
    paths: list[str] = []
    modules: list[torch.nn.Module] = []
    shared: dict[int, int] = {}
    first: dict[int, int] = {}
    scripts = isinstance(model, (torch.jit.ScriptModule, FileModule))
    stack: list[tuple[str, str, torch.nn.Module, int]] = [(class_of(model), "", model, -1)]
    while stack:
        name, path, module, parent = stack.pop()
        row = len(names)
        names.append(name)
        types.append(class_of(module) if scripts else type(module).__name__)
        parents.append(parent)
        paths.append(path)
        modules.append(module)
        seen = first.setdefault(id(module), row)
        if seen != row:
            shared[row] = seen
            continue
        inside = module.__dict__.get("_modules") or module._modules
        if inside:
            prefix = path + "." if path else ""
            for key, part in reversed(list(inside.items())):
                if part is not None:
                    stack.append((key, prefix + key, part, row))
    kinds = None
    if shared:
        kinds = ["shared" if row in shared else "module" for row in range(len(names))]
    return modules, shared, Forest(names, types, parents, paths=paths, kinds=kinds)


def class_of(module: torch.nn.Module) -> str:
    """The name of a module's class; of one that was scripted, of the class that it was before."""
    return str(getattr(module, "original_name", None) or type(module).__name__)


def count_tensors(
    forest: Forest, modules: list[torch.nn.Module], shared: dict[int, int]
) -> list[torch.Tensor]:
    """Parameters and buffers as columns, each once however many names it has; gives the parameters."""
    parameters: list[torch.Tensor] = []
    for role, table in (("parameter", "_parameters"), ("buffer", "_buffers")):
        rows: list[int] = []
        held: list[torch.Tensor] = []
        for row, module in enumerate(modules):
            inside = module.__dict__.get(table)
            if inside is None:
                inside = own_tensors(module, table)
            if inside:
                for tensor in inside.values():
                    if tensor is not None:
                        rows.append(row)
                        held.append(tensor)
        for row in shared:  # all that is inside counts here too, for the rows above
            more = [
                one
                for part in modules[row].modules()
                if part is not modules[row]
                for one in own_tensors(part, table).values()
            ]
            held += (found := [tensor for tensor in more if tensor is not None])
            rows += [row] * len(found)
        if shared:
            order = sorted(range(len(rows)), key=rows.__getitem__)
            rows, held = [rows[at] for at in order], [held[at] for at in order]
        known: dict[Any, int] = {}
        items = [known.setdefault(identity(tensor), len(known)) for tensor in held]
        first: list[torch.Tensor] = []
        for item, tensor in zip(items, held):
            if item == len(first):
                first.append(tensor)
        _columns(forest, role, rows, items, first)
        if role == "parameter":
            parameters = first
    return parameters


def _columns(
    forest: Forest, role: str, rows: list[int], items: list[int], tensors: list[torch.Tensor]
) -> None:
    numel = np.array([_numel(tensor) for tensor in tensors], dtype=np.int64)
    dtypes = [tensor.dtype for tensor in tensors]
    widths = {dtype: dtype.itemsize for dtype in set(dtypes)}
    nbytes = numel * np.array([widths[dtype] for dtype in dtypes], dtype=np.int64)
    holding = Sharing(forest, rows, items, numel)
    numbers = forest.numbers
    if role == "buffer":
        numbers["buffer_bytes"] = holding.inclusive(nbytes).astype(np.float64)
        return
    forest.sharing = holding
    wants = np.array([tensor.requires_grad for tensor in tensors], dtype=bool)
    numbers["params"] = holding.inclusive(numel).astype(np.float64)
    numbers["own_params"] = holding.own(numel).astype(np.float64)
    numbers["trainable"] = holding.inclusive(np.where(wants, numel, 0)).astype(np.float64)
    numbers["bytes"] = holding.inclusive(nbytes).astype(np.float64)
    numbers["own_bytes"] = holding.own(nbytes).astype(np.float64)
    numbers["modules"] = (forest.end - np.arange(len(forest))).astype(np.float64)
    share(forest, "params")
    share(forest, "bytes")


def identity(tensor: torch.Tensor) -> Any:
    """What two names of the same memory have in common."""
    if type(tensor) in PLAIN and tensor.layout is STRIDED:
        address = tensor.data_ptr()
        if address:
            return address, tensor.numel()
    return id(tensor)


def _numel(tensor: torch.Tensor) -> int:
    if type(tensor) in PLAIN:
        return tensor.numel()
    return 0 if isinstance(tensor, UninitializedTensorMixin) else int(tensor.numel())


def own_tensors(module: torch.nn.Module, name: str) -> Mapping[str, torch.Tensor | None]:
    """A module's own parameters or buffers; those of TorchScript are not where others have them."""
    found = module.__dict__.get(name)
    return dict(getattr(module, name).items()) if found is None else found
