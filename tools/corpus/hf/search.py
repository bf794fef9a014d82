"""Which inputs to try on a model, in which order, and how to mend the ones it complains about."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import nn

from tools.corpus.hf.inputs import COMPANIONS, FOLLOWERS, READINGS, packed_patches, setting

MOST_COMBINATIONS = 14
_OTHER_SENSES = ("pixel_values", "input_features", "input_values", "flattened_patches", "pixel_values_videos")
_PLACEHOLDERS = {
    "Image": ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_patch_id"),
    "Audio": ("audio_token_id", "audio_token_index"),
    "Video": ("video_token_id", "video_token_index"),
}
_MISMATCH = re.compile(
    r"(Image|Audio|Video|Multimodal)?.*tokens:? \(?(\d+)\)?.*features:? \(?(\d+)\)?", re.DOTALL
)
Arguments = dict[str, Any]
Search = Generator[Arguments, Exception, None]


def candidates(model: nn.Module, fixed: Arguments | None = None) -> Search:
    """Yield keyword arguments to try; send back the error that the model answered with."""
    if fixed is not None:
        yield fixed
        return
    seen: set[tuple[str, ...]] = set()
    for names in _name_sets(model):
        key = tuple(sorted(names))
        if key in seen:
            continue
        seen.add(key)
        for arguments in _combinations(names, model):
            error = yield arguments
            for _ in range(3):
                mended = _mend(arguments, error, model)
                if mended is None:
                    break
                arguments = mended
                error = yield arguments


def required_inputs(model: nn.Module) -> list[str]:
    """The inputs of forward that have no default."""
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(model.forward).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in loose]


def _name_sets(model: nn.Module) -> Iterator[list[str]]:
    """Sets of inputs, the one that wakes most of the model first."""
    taken = inspect.signature(model.forward).parameters
    needed = required_inputs(model)
    main = getattr(model, "main_input_name", "input_ids")
    mains = main if isinstance(main, (list, tuple)) else [main]
    start = list(dict.fromkeys([*needed, *(name for name in mains if name in taken)]))
    texts = [name for name in ("input_ids", "decoder_input_ids") if name in taken]
    senses = [name for name in _OTHER_SENSES if name in taken]
    for sense in senses:
        yield _with_companions([*start, *texts, sense], taken)
    if getattr(model.config, "is_encoder_decoder", False):
        yield [*start, *texts]
    yield _with_companions(start, taken)
    yield start
    yield [*needed, *texts]
    yield [*needed, *texts[:1]]
    yield [*start, *(name for name in ("bbox", "attention_mask") if name in taken)]
    for sense in senses:
        yield [*needed, sense]
    for name in ("inputs_embeds", "hidden_states"):
        if name in taken:
            yield [*needed, name]
    yield [
        name for name in taken if name in READINGS and name not in ("inputs_embeds", "decoder_inputs_embeds")
    ]


def _with_companions(names: list[str], taken: Any) -> list[str]:
    extra = [mate for name in names for mate in COMPANIONS.get(name, ()) if mate in taken]
    return list(dict.fromkeys([*names, *extra]))


def _combinations(names: list[str], model: nn.Module) -> Iterator[Arguments]:
    names = list(dict.fromkeys(names))
    readings: dict[str, list[Any]] = {}
    for name in names:
        if name in READINGS:
            readings[name] = READINGS[name](model.config)
        elif name not in FOLLOWERS and name in required_inputs(model):
            return  # nothing is known of an input it cannot do without
    packed = {"grid_thw", "image_grid_thw"} & readings.keys()
    if packed:
        for name in {"pixel_values", "hidden_states"} & readings.keys():
            readings[name] = [*packed_patches(model.config), *readings[name]]
    followers = [name for name in FOLLOWERS if name in inspect.signature(model.forward).parameters]
    for chosen in itertools.islice(_nearest_first(list(readings.values())), MOST_COMBINATIONS):
        arguments = dict(zip(readings, chosen, strict=True))
        for name in followers:
            try:
                follower = FOLLOWERS[name](arguments)
            except (KeyError, AttributeError):
                continue
            if follower is not None:
                arguments[name] = follower
        yield arguments


def _nearest_first(choices: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """The likeliest of each, then those that differ in one place, then the rest."""
    positions = itertools.product(*(range(len(values)) for values in choices))
    for places in sorted(positions, key=lambda place: (sum(map(bool, place)), sum(place))):
        yield tuple(values[place] for values, place in zip(choices, places, strict=True))


def _mend(arguments: Arguments, error: Exception, model: nn.Module) -> Arguments | None:
    """Put as many placeholder tokens into the text as the error says there are features."""
    found = _MISMATCH.search(str(error))
    if found is None or "input_ids" not in arguments:
        return None
    kind, tokens, features = found[1] or "Image", int(found[2]), int(found[3])
    token = setting(model.config, *_PLACEHOLDERS.get(kind, _PLACEHOLDERS["Image"]))
    if token is None or tokens == features or features > 4096:
        return None
    ids = arguments["input_ids"]
    rows = ids.shape[0]
    if features % rows:
        return None
    plain = torch.randint(5, 50, (rows, 4))
    placeholders = torch.full((rows, features // rows), token)
    return {**arguments, "input_ids": torch.cat([plain[:, :2], placeholders, plain[:, 2:]], dim=1)}
