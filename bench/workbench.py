"""The workbench on GPT-2 small: activations of real calls, sweeps of patches, and ``again``, beside hooks by hand.

nnsight and TransformerLens are measured where they are installed. All on one thread, by processor time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import torch_vis as tv
from bench import child
from bench.row import Row, at_most, for_information
from bench.timing import Samples, cpu, interleave

TEXTS, LENGTHS, SHORTEST = 500, 35, 6
LAYERS, POSITIONS, TOKENS = 12, 8, 12
KEPT = "transformer.h.6"
LIVE, PATCHES, AGAIN = 1.15, 0.6, 1.5


def run(quick: bool) -> list[Row]:
    """Live activations over texts of many lengths; 96 patches of the model without and with its head; ``again``."""
    texts = 2 * LENGTHS if quick else TEXTS
    ours, peer = child.call("bench.workbench:live_seconds", threads=1, texts=texts)
    title = f"live keep, GPT-2 small, {texts} texts of {LENGTHS} lengths"
    rows = [at_most(title, f"{ours:.1f} s", f"hook: {peer:.1f} s", ours / peer, LIVE)]
    for head in (False, True):
        rows += patch_rows(head, rounds=1 if quick else 3)
    times = Samples(child.call("bench.workbench:again_seconds", threads=1, rounds=9 if quick else 25))
    rows.append(
        at_most(
            "again() after replacing the last of 12 blocks",
            f"{times.median('again') * 1e3:.1f} ms",
            f"what must run: {times.median('operations') * 1e3:.1f} ms",
            times.ratio("again", "operations"),
            AGAIN,
            times.best_ratio("again", "operations"),
        )
    )
    return rows


def patch_rows(head: bool, rounds: int) -> list[Row]:
    """The sweep beside each peer; and what must run beside the hooks, which no way of doing it can beat."""
    times = Samples(child.call("bench.workbench:patch_seconds", threads=1, head=head, rounds=rounds))
    what = f"{LAYERS * POSITIONS} patches, GPT-2 small{' and its language head' if head else ''}"
    rows = []
    for name in times.seconds:
        if name in ("sweep", "what must run"):
            continue
        limit = PATCHES if name == "hooks" else 1.0
        figures = f"{times.median('sweep'):.2f} s", f"{name}: {times.median(name):.2f} s"
        ratio, best = times.ratio("sweep", name), times.best_ratio("sweep", name)
        rows.append(at_most(what, *figures, ratio, limit, best))
    least = times.ratio("what must run", "hooks")
    figures = f"{times.median('what must run'):.2f} s", f"hooks: {times.median('hooks'):.2f} s"
    rows.append(for_information(at_most("  of these, the layers behind a patch alone", *figures, least, 1.0)))
    return rows


# ---------------------------------------------------------------- in a process of its own


def gpt2(head: bool = True) -> torch.nn.Module:
    """GPT-2 small with random weights."""
    import transformers

    torch.manual_seed(0)
    kind = transformers.GPT2LMHeadModel if head else transformers.GPT2Model
    model: torch.nn.Module = kind(transformers.GPT2Config(attn_implementation="sdpa")).eval()
    return model


def live_seconds(texts: int) -> tuple[float, float]:
    """Seconds of all calls with ``tv.live`` and with a hook, text by text in turn."""
    model = gpt2()
    lengths = [SHORTEST + number % LENGTHS for number in range(texts)]
    ids = [torch.randint(0, 50257, (1, length)) for length in lengths]
    caught: list[torch.Tensor] = []
    kept: list[Any] = []
    seconds = {"live": 0.0, "hook": 0.0}

    def by_hook(text: torch.Tensor) -> None:
        block = model.get_submodule(KEPT)
        handle = block.register_forward_hook(lambda _, __, out: caught.append(out.detach().clone()))
        model(text)
        handle.remove()

    def by_live(text: torch.Tensor) -> None:
        with tv.live(model, keep=KEPT) as run:
            model(text)
        kept.extend(run.kept[KEPT])

    sides: list[tuple[str, Callable[[torch.Tensor], None]]] = [("live", by_live), ("hook", by_hook)]
    with torch.no_grad():
        for turn, text in enumerate([ids[0], *ids]):
            for name, side in sides if turn % 2 else sides[::-1]:
                start = cpu()
                side(text)
                # the first text warms up
                seconds[name] += (cpu() - start) * bool(turn)
    assert all(map(torch.equal, kept, caught))
    return seconds["live"], seconds["hook"]


def patch_seconds(head: bool, rounds: int) -> dict[str, list[float]]:
    """Seconds of 12 layers × 8 positions, each patched with what another text has there."""
    model = gpt2(head)
    layers = "transformer.h" if head else "h"
    clean, other = (torch.randint(0, 50257, (1, TOKENS)) for _ in range(2))
    blocks = list(model.get_submodule(layers))
    effects: dict[str, list[float]] = {}

    def measure(output: Any) -> torch.Tensor:
        tensor: torch.Tensor = output.logits if head else output.last_hidden_state
        return tensor[0, -1, :2].sum()

    def activations() -> list[torch.Tensor]:
        caught: list[torch.Tensor] = []
        handles = [b.register_forward_hook(lambda _, __, out: caught.append(out)) for b in blocks]
        model(other)
        for handle in handles:
            handle.remove()
        return caught

    def hooks() -> None:
        there, found = activations(), []
        for block, tensor in zip(blocks, there):
            for position in range(POSITIONS):
                handle = block.register_forward_hook(partial(patched, tensor, position))
                found.append(float(measure(model(clean))))
                handle.remove()
        effects["hooks"] = found

    def sweep() -> None:
        trace = tv.trace(model, clean)
        edit = tv.edit.patch_from(trace.run(other, keep="all"))
        rows = trace.sweep(f"{layers}.*", edit, measure=measure, positions=range(POSITIONS)).rows
        effects["sweep"] = [row.value for row in rows]

    def behind() -> None:
        for first, hidden in enumerate(activations()):
            for _ in range(POSITIONS):
                for block in blocks[first + 1 :]:
                    hidden = block(hidden)
                if head:
                    model.lm_head(model.transformer.ln_f(hidden))
                else:
                    model.ln_f(hidden)

    sides: dict[str, Any] = {"sweep": sweep, "hooks": hooks, "what must run": behind}
    sides |= peers(model, layers, clean, other, measure) if head else {}
    with torch.no_grad():
        times = interleave(sides, rounds=rounds, warmups=0)
    assert effects["sweep"] == effects["hooks"], "the sweep is not what the hooks gave"
    return times.seconds


def peers(
    model: torch.nn.Module, layers: str, clean: torch.Tensor, other: torch.Tensor, measure: Any
) -> dict[str, Any]:
    """The same with nnsight and TransformerLens, where they are installed."""
    sides: dict[str, Any] = {}
    try:
        import nnsight
    except ImportError:
        pass
    else:
        sides["nnsight"] = lambda: by_nnsight(nnsight.NNsight(model), clean, other)
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        return sides
    config = HookedTransformerConfig(
        n_layers=LAYERS, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_vocab=50257, act_fn="gelu_new"
    )
    lens = HookedTransformer(config).eval()
    sides["TransformerLens"] = lambda: by_lens(lens, clean, other)
    return sides


def by_nnsight(wrapped: Any, clean: torch.Tensor, other: torch.Tensor) -> None:
    """96 patches in nnsight's way."""
    there = []
    with wrapped.trace(other):
        for layer in range(LAYERS):
            there.append(wrapped.transformer.h[layer].output.save())
    for layer in range(LAYERS):
        for position in range(POSITIONS):
            with wrapped.trace(clean):
                wrapped.transformer.h[layer].output[:, position] = there[layer][:, position]
                measured = wrapped.lm_head.output[0, -1, :2].sum().save()
            float(measured)


def by_lens(lens: Any, clean: torch.Tensor, other: torch.Tensor) -> None:
    """96 patches in TransformerLens's way."""
    _, cache = lens.run_with_cache(other)
    for layer in range(LAYERS):
        name = f"blocks.{layer}.hook_resid_post"
        for position in range(POSITIONS):
            hook = partial(patched_in_place, cache[name], position)
            float(lens.run_with_hooks(clean, fwd_hooks=[(name, hook)])[0, -1, :2].sum())


def patched(source: torch.Tensor, position: int, _: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
    """A forward hook: what a block returned, with one position of another run."""
    new = out.clone()
    new[:, position] = source[:, position]
    return new


def patched_in_place(source: torch.Tensor, position: int, tensor: torch.Tensor, hook: Any) -> torch.Tensor:
    """A hook of TransformerLens: the same."""
    tensor[:, position] = source[:, position]
    return tensor


def again_seconds(rounds: int) -> dict[str, list[float]]:
    """Seconds of ``again`` with the last block replaced, and of the layers behind it alone."""
    model, ids = gpt2(), torch.randint(0, 50257, (1, TOKENS))
    with torch.no_grad():
        base = tv.trace(model, ids).run(keep="all")
        hidden = model.transformer(ids).last_hidden_state  # type: ignore[operator, union-attr]
        sides = {
            "again": lambda: base.again(replace={"transformer.h.11": tv.edit.zero()}),
            "operations": lambda: model.lm_head(model.transformer.ln_f(hidden)),  # type: ignore[operator, union-attr]
        }
        return interleave(sides, rounds=rounds, warmups=2).seconds
