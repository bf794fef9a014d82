"""``python -m tools.interventions [TRIES] [SEED]``: random interventions over the zoo, beside hooks, bit for bit.

Each try draws a model, a selector and an edit, runs it with ``tv.live`` and, where the run can be replayed, ``t.run``,
and compares every output with what a hook written by hand gives. Then a generation with its cache, token by token.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO, close_process_group
from torch_vis.capture.containers import named_tensors
from torch_vis.errors import TorchVisError
from torch_vis.replay.replay import same_bits


class Verb(NamedTuple):
    """An edit, and the same by hand."""

    name: str
    edit: Any
    by_hand: Callable[[Tensor], Tensor]


VERBS = (
    Verb("zero", tv.edit.zero(), torch.zeros_like),
    Verb("scale", tv.edit.scale(0.5), lambda y: y * 0.5),
    Verb("add", tv.edit.add(0.25), lambda y: y + 0.25),
    Verb("clamp", tv.edit.clamp(-0.1, 0.1), lambda y: y.clamp(-0.1, 0.1)),
    Verb("function", lambda y: y * 2 + 1, lambda y: y * 2 + 1),
    Verb("mean", tv.edit.mean(0), lambda y: y.mean(0, keepdim=True).expand_as(y).clone()),
)
FORMS = ("path", "call", "class", "regex", "input", "slice", "either")


def selected(form: str, path: str, module: nn.Module) -> str:
    """A selector of one module, in one of the forms of the language."""
    return {
        "call": f"{path}:0",
        "class": f"class:{type(module).__name__} & {path}",
        "regex": f"/^{path.replace('.', '[.]')}$/",
        "input": f"{path}.input",
        "slice": f"{path}[0]",
        "either": f"({path} | {path})",
    }.get(form, path)


def hooked(module: nn.Module, form: str, by_hand: Callable[[Tensor], Tensor]) -> Any:
    """The same by a hook."""

    def sliced(_: Any, __: Any, out: Tensor) -> Tensor:
        new = out.clone()
        new[0] = by_hand(out[0])
        return new

    if form == "input":
        return module.register_forward_pre_hook(lambda _, args: (by_hand(args[0]), *args[1:]))
    if form == "slice":
        return module.register_forward_hook(sliced)
    return module.register_forward_hook(lambda _, __, out: by_hand(out))


def candidates(model: nn.Module, args: Any, kwargs: Any) -> dict[str, tuple[Any, Any]]:
    """Modules that are called once, with one floating tensor first, and return one; by their paths."""
    seen: dict[str, list[Any]] = {}
    handles = [
        module.register_forward_hook(
            lambda _, given, out, path=path: seen.setdefault(path, []).append((given, out))
        )
        for path, module in model.named_modules()
        if path
    ]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return {path: calls[0] for path, calls in seen.items() if len(calls) == 1 and _plain(calls[0][1])}


def _plain(item: Any) -> bool:
    return type(item) is Tensor and item.is_floating_point() and not item.is_sparse and not item.is_nested


def tried(name: str, draw: random.Random) -> str | None:
    """One intervention; None where this model has no place for one."""
    case = ZOO[name]
    model, args, kwargs = case.make()
    if not isinstance(model, nn.Module):
        return None
    model.eval()
    places = candidates(model, args, kwargs)
    places = {path: call for path, call in places.items() if "_orig_mod" not in path}
    if not places:
        return None
    path, form, verb = draw.choice(list(places)), draw.choice(FORMS), draw.choice(VERBS)
    given, out = places[path]
    # with hooks of its own a module is given one thing, and its forward another: live sees that, a graph the former
    own = model.get_submodule(path)._forward_pre_hooks
    if form == "input" and (own or not (given and _plain(given[0]))):
        form = "path"
    if form == "slice" and (out.dim() < 2 or not len(out)):
        form = "path"
    if verb.name == "mean" and (given[0] if form == "input" else out).dim() < 2 + (form == "slice"):
        verb = VERBS[1]

    def fresh() -> tuple[nn.Module, Any, Any]:
        again, args, kwargs = case.make()
        again.eval()
        torch.manual_seed(1)
        return again, args, kwargs

    by_hand, args, kwargs = fresh()
    handle = hooked(by_hand.get_submodule(path), form, verb.by_hand)
    with torch.no_grad():
        wanted = by_hand(*args, **kwargs)
    handle.remove()
    live, args, kwargs = fresh()
    text = selected(form, path, live.get_submodule(path))
    with torch.no_grad(), tv.live(live, replace={text: verb.edit}):
        found = live(*args, **kwargs)
    compare(wanted, found, f"live: {name} {text!r} {verb.name}")
    traced, args, kwargs = fresh()
    with torch.no_grad():
        t = tv.trace(traced, *args, kwargs=kwargs)
    try:
        rerun = t.run(replace={text: verb.edit})
    except TorchVisError:
        return f"{form}, live alone"
    if not rerun.limits:
        compare(wanted, rerun.output, f"run: {name} {text!r} {verb.name}")
    return form


def compare(wanted: Any, found: Any, what: str) -> None:
    """Raise where two outputs differ in any bit."""
    for (_, one), (_, two) in zip(named_tensors(wanted), named_tensors(found), strict=True):
        assert same_bits(one, two), what


def generated() -> None:
    """A generation with its cache, steered at a layer, a head and a slice, beside hooks."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=3, n_embd=32, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.arange(1, 9)[None]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    options["return_dict_in_generate"] = True
    steer = torch.randn(32)

    def without_head(_: Any, args: Any) -> Any:
        new = args[0].clone()
        new[..., 8:16] = 0
        return (new, *args[1:])

    def last_scaled(_: Any, __: Any, out: Tensor) -> Tensor:
        new = out.clone()
        new[:, -1] = new[:, -1] * 3
        return new

    blocks = model.transformer.h
    cases: list[tuple[str, Any, Callable[[], Any]]] = [
        (
            "h.1",
            tv.edit.add(steer),
            lambda: blocks[1].register_forward_hook(lambda _, __, out: out + steer),
        ),
        (
            "h.2.attn[head=1]",
            tv.edit.zero(),
            lambda: blocks[2].attn.c_proj.register_forward_pre_hook(without_head),
        ),
        ("h.0[:, -1]", tv.edit.scale(3), lambda: blocks[0].register_forward_hook(last_scaled)),
    ]
    for text, edit, hook in cases:
        handle = hook()
        wanted = model.generate(ids, **options)
        handle.remove()
        with tv.live(model, replace={text: edit}):
            found = model.generate(ids, **options)
        assert torch.equal(wanted.sequences, found.sequences), text
        assert all(map(same_bits, wanted.logits, found.logits)), text


def main() -> None:
    """Try, and count."""
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    draw = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    torch.set_num_threads(1)
    names = [name for name, case in ZOO.items() if not {"slow", "real"} & set(case.tags)]
    counts: Counter[str] = Counter()
    unfit: set[str] = set()
    while sum(counts.values()) < tries:
        name = draw.choice([name for name in names if name not in unfit])
        try:
            form = tried(name, draw)
        except (RuntimeError, NotImplementedError) as error:
            # the model itself does not run without gradients, or torch has no such kernel
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
            form = None
        finally:
            close_process_group()
        if form is None:
            unfit.add(name)
        else:
            counts[form] += 1
    generated()
    kinds = ", ".join(f"{count} {form}" for form, count in counts.most_common())
    print(
        f"{sum(counts.values())} interventions equal to hooks bit for bit ({kinds}); generation with a cache too"
    )


if __name__ == "__main__":
    main()
