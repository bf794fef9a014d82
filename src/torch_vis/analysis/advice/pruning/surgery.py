"""A model made smaller: parts of its parameters gone, and the sizes that its modules keep adjusted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torch_vis.capture.modes import without_gradients
from torch_vis.capture.undo import Undo, context

# Numbers that torch's own modules keep of their sizes, by the parameter and dimension that they go by.
SIZES: dict[tuple[str, int], tuple[str, ...]] = {
    ("weight", 0): ("out_features", "out_channels", "num_features", "num_channels", "nf"),
    ("weight", 1): ("in_features", "in_channels", "embedding_dim", "nx"),
}
KNOWN = {name for names in SIZES.values() for name in names} | {"groups", "num_embeddings"}
TURNED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
TRIES = 24


class AttributeChange(NamedTuple):
    """A number that a module keeps, and what it has to be in the smaller model; ``holder`` may be its ``config``.

    A ``MultiheadAttention`` changes its class as well: torch's own takes heads to be as wide as what comes in.
    """

    path: str
    attribute: str
    before: Any
    after: Any
    holder: str = ""

    @property
    def name(self) -> str:
        """What is changed, as its module has it."""
        return (
            "class" if isinstance(self.after, type) else ".".join(filter(None, (self.holder, self.attribute)))
        )

    def __str__(self) -> str:
        before, after = (
            item.__name__ if isinstance(item, type) else item for item in (self.before, self.after)
        )
        return f"{'.'.join(filter(None, (self.path, self.name)))} {before} → {after}"


def without(
    model: torch.nn.Module, kept: Mapping[str, Sequence[Any]], *, share: bool = False
) -> torch.nn.Module:
    """A copy of a model with parts of its parameters and buffers gone, and the sizes that its modules keep adjusted.

    With ``share``, tensors of which nothing is gone are the model's own: a copy to try costs what is cut.
    """
    smaller = copy.deepcopy(
        model, {id(tensor): tensor for tensor in tensors_of(model).values()} if share else None
    )
    resized: dict[int, torch.Tensor] = {}
    for path, module in smaller.named_modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                masks = kept.get(f"{path}.{name}" if path else name)
                if id(tensor) not in resized:
                    if masks is None or all(mask.all() for mask in masks):
                        continue
                    resized[id(tensor)] = _cut_tensor(tensor, masks)
                new = resized[id(tensor)]
                _resize(module, name, tuple(tensor.shape), tuple(new.shape))
                if isinstance(module, torch.nn.RNNBase):
                    # it keeps a list of them besides
                    setattr(module, name, new)
                else:
                    table[name] = new
    _part(smaller, tensors_of(model).values()) if share else compact(smaller)
    return smaller


def compact(model: torch.nn.Module) -> None:
    """Put the weights of recurrent layers together in memory, as they are in a model that nobody has copied."""
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()


def _part(smaller: torch.nn.Module, whole: Iterable[torch.Tensor]) -> None:
    """Recurrent layers of which something is gone get all tensors for themselves: on a GPU, these lie together."""
    shared = {id(tensor) for tensor in whole}
    for module in smaller.modules():
        own = module._parameters if isinstance(module, torch.nn.RNNBase) else {}
        if not all(tensor is None or id(tensor) in shared for tensor in own.values()):
            for name, tensor in list(own.items()):
                if tensor is not None and id(tensor) in shared:
                    setattr(module, name, torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
            module.flatten_parameters()  # type: ignore[operator]


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and buffers, a shared one under each of its names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _cut_tensor(tensor: torch.Tensor, masks: Sequence[Any]) -> torch.Tensor:
    kept = tensor.detach()
    for number, mask in enumerate(masks):
        if not mask.all():
            kept = kept.index_select(number, torch.as_tensor(np.flatnonzero(mask), device=kept.device))
    kept = kept.clone()
    return torch.nn.Parameter(kept, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else kept


def _resize(module: torch.nn.Module, name: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Adjust the numbers in which a module keeps a size of this parameter."""
    if isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase)):
        return _resize_recurrent(module, name.removesuffix("_l0"), before, after)
    # its weight has what comes in first
    turned = isinstance(module, TURNED) or hasattr(module, "nf")
    for number, (old, new) in enumerate(zip(before, after)):
        if old == new:
            continue
        key = (name, 1 - number) if turned and number < 2 else (name, number)
        for attribute in SIZES.get(key, ()):
            if getattr(module, attribute, None) == old:
                setattr(module, attribute, new)
        groups = getattr(module, "groups", 1)
        if groups == old and number == 0 and name == "weight" and groups > 1:
            module.groups, module.in_channels = new, new  # type: ignore[assignment]
        if getattr(module, "normalized_shape", None) == (old,):
            module.normalized_shape = (new,)  # type: ignore[assignment]


def _resize_recurrent(
    module: torch.nn.Module, name: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """The first layer tells; what the others have goes with it."""
    if name == "weight_ih":
        module.input_size = after[1]  # type: ignore[assignment]
    elif name == "weight_hh":
        module.hidden_size = module.hidden_size * after[0] // before[0]  # type: ignore[operator, assignment]
    elif name == "weight_hr":
        module.proj_size = after[0]  # type: ignore[assignment]


def impossible(model: torch.nn.Module) -> str:
    """Why torch's own modules cannot have the sizes that are left; empty where they can."""
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.RNNBase) and 0 < module.hidden_size <= module.proj_size:
            return (
                f"{path or type(module).__name__} would have {module.hidden_size:,} hidden units and a projection to "
                f"{module.proj_size:,}, which has to be smaller"
            )
    return ""


@context
def zeroed(undo: Undo, model: torch.nn.Module, columns: Mapping[str, Sequence[Any]]) -> torch.nn.Module:
    """A model with some columns of its parameters zero, as long as the block runs."""
    tensors = tensors_of(model)
    with without_gradients():
        for name, masks in columns.items():
            tensor = tensors.get(name)
            if tensor is None or not any(mask.any() for mask in masks):
                continue
            undo.add(_put_back, tensor, tensor.clone())
            for number, mask in enumerate(masks):
                where = torch.as_tensor(np.flatnonzero(mask), device=tensor.device)
                tensor.index_fill_(number, where, 0)
    return model


def _put_back(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    with without_gradients():
        tensor.copy_(whole)


@context
def sharpened(undo: Undo, model: torch.nn.Module, names: Collection[str]) -> None:
    """A model with some matrices scaled to what trained ones are like, as long as the block runs.

    Fresh weights are so small that all heads attend evenly, and then heads that are mixed up look much like heads that
    are not.
    """
    with without_gradients():
        for name, parameter in model.named_parameters():
            if name in names and parameter.dim() > 1 and parameter.is_floating_point():
                undo.add(_put_back, parameter, parameter.clone())
                size = float(parameter.square().mean().sqrt()) * max(parameter.shape) ** 0.5
                parameter.mul_(max(1.0, 3.0 / size) if size else 1.0)


# ---------------------------------------------------------------- numbers that modules keep


@context
def changed(undo: Undo, model: torch.nn.Module, changes: Sequence[AttributeChange]) -> None:
    """A model with numbers of its modules changed, as long as the block runs."""
    for change in changes:
        module = model.get_submodule(change.path)
        name, before = change.attribute, change.before
        if change.holder:
            name, before = change.holder, getattr(module, change.holder)
        undo.add(setattr, module, name, before)
        _change(module, change)


def change_all(model: torch.nn.Module, changes: Sequence[AttributeChange]) -> None:
    """AttributeChange numbers of a model's modules."""
    for change in changes:
        _change(model.get_submodule(change.path), change)


def _change(module: torch.nn.Module, change: AttributeChange) -> None:
    if not change.holder:
        setattr(module, change.attribute, change.after)
        return
    # others may hold the same one
    own = copy.copy(getattr(module, change.holder))
    setattr(own, change.attribute, change.after)
    setattr(module, change.holder, own)


def torch_attention(
    model: torch.nn.Module, paths: Sequence[str], left: Fraction
) -> tuple[AttributeChange, ...]:
    """What has to change in torch's own attention modules among these for them to have fewer heads."""
    changes: list[AttributeChange] = []
    for path, module in model.named_modules():
        if path not in paths or type(module) is not torch.nn.MultiheadAttention:
            continue
        if module.bias_k is not None or module.add_zero_attn:
            return ()
        changes += [
            AttributeChange(path, "num_heads", module.num_heads, int(module.num_heads * left)),
            AttributeChange(path, "__class__", torch.nn.MultiheadAttention, FewerHeads),
            AttributeChange(path, "_qkv_same_embed_dim", module._qkv_same_embed_dim, False),
        ]
    return tuple(changes)


def possible_changes(
    model: torch.nn.Module, paths: Sequence[str], sizes: Collection[int], left: Fraction
) -> list[list[AttributeChange]]:
    """Numbers that may stand for one of these sizes: the modules' own, those of their settings, their parents'."""
    modules = dict(model.named_modules(remove_duplicate=False))
    known_paths = [path for path in paths if path in modules]
    own = [
        change
        for path in known_paths
        for change in _in(vars(modules[path]), path, "", modules[path], sizes, left)
    ]
    settings: list[AttributeChange] = []
    for path in known_paths:
        for name, item in vars(modules[path]).items():
            if hasattr(item, "__dict__") and name.startswith("config"):
                settings += _in(vars(item), path, name, item, sizes, left)
    above = sorted({path.rpartition(".")[0] for path in known_paths if path} - {*known_paths})
    outer = [
        change for path in above for change in _in(vars(modules[path]), path, "", modules[path], sizes, left)
    ]
    return [own, settings, outer]


def _in(
    table: Mapping[str, Any], path: str, holder: str, owner: Any, sizes: Collection[int], left: Fraction
) -> Iterator[AttributeChange]:
    for name, value in table.items():
        if name in KNOWN or name.startswith("__") or not hasattr(owner, name):
            continue
        new = _scaled(value, sizes, left)
        if new is not None:
            yield AttributeChange(path, name, value, new, holder)


def _scaled(value: Any, sizes: Collection[int], left: Fraction) -> Any:
    """A number, or several, with those that equal one of the sizes scaled down; None where none does."""
    if type(value) is int:
        new = value * left
        return int(new) if value in sizes and new.denominator == 1 else None
    if type(value) in (tuple, list) and value and all(type(item) is int for item in value):
        scaled = [_scaled(item, sizes, left) for item in value]
        if any(item is not None for item in scaled):
            return type(value)(old if new is None else new for old, new in zip(value, scaled))
    return None


def attempts(
    tiers: Sequence[Sequence[AttributeChange]], before: Collection[tuple[str, ...]]
) -> Iterator[tuple[AttributeChange, ...]]:
    """Sets of changes to try, the likeliest first, not more than a fixed number of them.

    ``before`` has names that were right elsewhere in the model.
    """
    seen: set[tuple[int, ...]] = set()
    for changes in _sets(tiers, before):
        key = tuple(sorted(map(id, changes)))
        if key not in seen:
            seen.add(key)
            yield changes
        if len(seen) >= TRIES:
            return


def _sets(
    tiers: Sequence[Sequence[AttributeChange]], before: Collection[tuple[str, ...]]
) -> Iterator[tuple[AttributeChange, ...]]:
    for names in before:
        yield tuple(change for tier in tiers[:2] for change in tier if change.name in names)
    known: list[AttributeChange] = list(tiers[0])
    yield named_for_heads(known)
    yield ()
    for tier in tiers:
        known += [change for change in tier if change not in known]
        yield tuple(known)
        yield named_for_heads(known)
        for number in (1, 2):
            yield from combinations(known, number)
        for left_out in known:
            yield tuple(change for change in known if change is not left_out)


def named_for_heads(changes: Sequence[AttributeChange]) -> tuple[AttributeChange, ...]:
    """The attributes whose names say that they count heads."""
    return tuple(change for change in changes if "head" in change.attribute)


HELD = "config"


class ConfigCorrection(NamedTuple):
    """What was made of a module's configuration: ``changes`` that make it right, or ``wrong``, numbers that are not."""

    path: str
    changes: tuple[AttributeChange, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        if self.changes:
            changes = ", ".join(map(str, self.changes))
            return f"the configuration was corrected, so that a model built from it is this one: {changes}"
        held = ".".join(filter(None, (self.path, HELD)))
        return (
            f"{held} no longer describes the model (see {', '.join(self.wrong)}), and no numbers that would were "
            "found: from_pretrained() cannot load it; save it whole by torch.save(found.model, path), or its "
            "state_dict() for a model that is cut in the same way"
        )


def correct_settings(
    model: torch.nn.Module, sizes: Mapping[int, Collection[int]], gives: Callable[[torch.nn.Module], bool]
) -> list[ConfigCorrection]:
    """Correct the configurations of a cut model where a module built from one is the one that was cut.

    ``sizes`` has what became of each size, here and there in the model, and ``gives`` says whether a model gives what
    the cut one gives. Only such numbers are changed as have to be, and none where no set of them is found.
    """
    corrections = []
    for path, module in _holders(model):
        # nothing of it was cut
        if _shapes(module) == _shapes(_built(module, (), "meta")):
            continue
        possible = [
            [AttributeChange(path, name, value, after, HELD) for after in sorted(sizes[value])]
            for name, value in vars(getattr(module, HELD)).items()
            if type(value) is int and not name.startswith("_") and value in sizes
        ]
        changes = _fewest(model, path, _fitting(module, possible), gives)
        change_all(model, changes)
        if possible:
            wrong = () if changes else tuple(f"{change.name} {change.before}" for change, *_ in possible)
            corrections.append(ConfigCorrection(path, changes, wrong))
    return corrections


def _fitting(
    module: torch.nn.Module, possible: Sequence[Sequence[AttributeChange]]
) -> tuple[AttributeChange, ...]:
    """Of what each number may become, or that it stays, what makes most shapes right; none where some stay wrong.

    A size that is cut by different amounts (the width, and all heads together) leaves open which one a number means.
    """
    wanted = _shapes(module)
    chosen: list[AttributeChange | None] = [changes[0] for changes in possible]

    def wrong(changes: Sequence[AttributeChange | None]) -> float:
        built = _built(module, [change for change in changes if change is not None], "meta")
        return float("inf") if built is None else len(wanted.items() ^ _shapes(built).items())

    least, before = wrong(chosen), float("inf")
    while 0 < least < before:
        before = least
        for index, changes in enumerate(possible):
            for other in (*changes, None):
                tried = [*chosen[:index], other, *chosen[index + 1 :]]
                left = wrong(tried) if other is not chosen[index] else least
                if left < least:
                    chosen, least = tried, left
    return tuple(change for change in chosen if change is not None) if least == 0 else ()


def _fewest(
    model: torch.nn.Module,
    path: str,
    changes: tuple[AttributeChange, ...],
    gives: Callable[[torch.nn.Module], bool],
) -> tuple[AttributeChange, ...]:
    """The changes without those that nothing depends on; none where the module built gives something else."""
    if not changes or not _is_same(model, path, changes, gives):
        return ()
    for change in changes:
        fewer = tuple(other for other in changes if other is not change)
        if _is_same(model, path, fewer, gives):
            changes = fewer
    return changes


def _is_same(
    model: torch.nn.Module,
    path: str,
    changes: tuple[AttributeChange, ...],
    gives: Callable[[torch.nn.Module], bool],
) -> bool:
    """Whether a module built from a changed configuration, with the weights of the cut one, gives the same."""
    module = model.get_submodule(path)
    if _shapes(_built(module, changes, "meta")) != _shapes(module):
        return False
    parameter = next(module.parameters())
    built = _built(module, changes, parameter.device)
    assert built is not None
    built.to(parameter.dtype).load_state_dict(module.state_dict())
    built.eval()
    above, _, name = path.rpartition(".")
    if not path:
        return gives(built)
    with _with_attribute(model.get_submodule(above), name, built):
        return gives(model)


@context
def _with_attribute(undo: Undo, owner: Any, name: str, value: Any) -> None:
    undo.set(owner, name, value)


def _holders(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The outermost modules that keep a configuration."""
    seen: list[str] = []
    for path, module in model.named_modules():
        inside = any(not above or path.startswith(f"{above}.") for above in seen)
        if not inside and hasattr(vars(module).get(HELD), "__dict__"):
            seen.append(path)
            yield path, module


def _shapes(module: torch.nn.Module | None) -> dict[str, tuple[int, ...]]:
    return (
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        if module is not None
        else {}
    )


def _built(
    module: torch.nn.Module, changes: Sequence[AttributeChange], device: torch.device | str
) -> torch.nn.Module | None:
    """A module of the same class made from its configuration, changed; None where it cannot be made."""
    config: Any = copy.deepcopy(getattr(module, HELD))
    for change in changes:
        setattr(config, change.attribute, change.after)
    try:
        if hasattr(config, "to_dict") and hasattr(type(config), "from_dict"):
            # as it is read from a file: some look at their numbers then
            type(config).from_dict(config.to_dict())
        with torch.device(device):
            built = type(module)(config)
    # a class that is made in another way, or numbers that it refuses
    except Exception:
        return None
    return built


class FewerHeads(torch.nn.MultiheadAttention):
    """A ``MultiheadAttention`` whose heads together may be narrower than its input, which torch's own does not allow.

    It has the same parameters under the same names, with rows of the projections and columns of ``out_proj`` gone. A
    module becomes one by its class being changed; the fused path of torch, which takes full widths for granted, is
    switched off by ``_qkv_same_embed_dim``.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``MultiheadAttention.forward``; a mask for each head has those of the heads that are left."""
        single = query.dim() == 2
        if single:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropout)
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        result = self.out_proj(out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            result = result.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return result.squeeze(0 if self.batch_first else 1), None if weights is None else weights.squeeze(
                0
            )
        return result, weights

    def _projected(self, *sides: Tensor) -> list[Tensor]:
        """Queries, keys and values: batch, heads, length, width of a head."""
        weights = (
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self.in_proj_weight is None
            else self.in_proj_weight.chunk(3)
        )
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip(sides, weights, biases)
        ]

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Both masks as one to be added to the scores, ``-inf`` where nothing is to be seen."""
        parts = []
        if mask is not None:
            parts.append(mask.view(q.shape[0], self.num_heads, *mask.shape[1:]) if mask.dim() == 3 else mask)
        if padding is not None:
            parts.append(padding.view(q.shape[0], 1, 1, k.shape[2]))
        added = None
        for part in parts:
            number = (
                q.new_zeros(part.shape).masked_fill(part, -torch.inf) if part.dtype == torch.bool else part
            )
            added = number.to(q.dtype) if added is None else added + number
        return added
