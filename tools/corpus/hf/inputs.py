"""What an input of a transformers model may look like, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

BATCH, LENGTH, GRID = 2, 12, 4
Reading = Callable[[Any], list[Any]]  # configuration → likely values, likeliest first


def setting(config: Any, *names: str, default: Any = None) -> Any:
    """The first of the names that the configuration or one of its parts has set."""
    for name in names:
        for holder in (config, *parts(config)):
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return default


def parts(config: Any) -> Iterator[Any]:
    """The configurations inside a configuration, at any depth."""
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield value
            yield from parts(value)


def _width(config: Any) -> int:
    width = setting(config, "hidden_size", "d_model", "n_embd", "embed_dim", "dim", default=64)
    return width if isinstance(width, int) else 64


def _channels(config: Any) -> int:
    channels = setting(config, "num_channels", "in_channels", "in_chans", default=3)
    return channels if isinstance(channels, int) else 3


def _patch(config: Any) -> int:
    patch = setting(config, "patch_size", "spatial_patch_size", default=16)
    return patch[-1] if isinstance(patch, (list, tuple)) else patch


def ids(config: Any) -> list[Tensor]:
    """Token ids that avoid the special ones at both ends of the vocabulary."""
    vocabulary = setting(config, "vocab_size", "text_vocab_size", default=100)
    vocabulary = vocabulary if isinstance(vocabulary, int) else 100
    tokens = torch.randint(5, max(6, min(vocabulary, 100)), (BATCH, LENGTH))
    return [tokens, tokens[:1]]


def _side(config: Any) -> tuple[int, int]:
    side = setting(config, "image_size", "img_size", default=64)
    if isinstance(side, dict):
        side = (side.get("height", 64), side.get("width", 64))
    return (side[0], side[-1]) if isinstance(side, (list, tuple)) else (side, side)


def packed_patches(config: Any) -> list[Tensor]:
    """The patches of one image one after another, for models that take images of any size."""
    frames = setting(config, "temporal_patch_size", "patch_temporal", default=1)
    channels, patch = _channels(config), _patch(config)
    square = torch.randn(GRID * GRID, channels, patch, patch)
    return [torch.randn(GRID * GRID, channels * frames * patch**2), square, square[None]]


def images(config: Any) -> list[Tensor]:
    """Batches of images, then of image sequences, then packed patches."""
    channels, frames = _channels(config), setting(config, "num_frames", "frames_per_clip", default=4)
    sides = list(dict.fromkeys([_side(config), (64, 64), (224, 224)]))
    if max(sides[0]) > 128:
        sides[:2] = sides[1::-1]  # a small picture first, for those that take any
    stills = [torch.randn(BATCH, channels, *side) for side in sides]
    sequences = [torch.randn(1, count, channels, *sides[0]) for count in dict.fromkeys((frames, 1, 2))]
    width = channels * _patch(config) ** 2
    packed = [torch.randn(BATCH, GRID * GRID, width), packed_patches(config)[0]]
    return [*stills[:2], *sequences, *packed, sequences[0][0], *stills[2:]]


def _clips(config: Any) -> list[Tensor]:
    channels, frames = _channels(config), setting(config, "num_frames", "frames_per_clip", default=4)
    return [torch.randn(1, count, channels, *_side(config)) for count in dict.fromkeys((frames, 4, 2))]


def grids(config: Any) -> list[Any]:
    """Spectrograms, time last and then time in the middle."""
    bins = setting(config, "num_mel_bins", "feature_size", "n_mels", "input_dim", "mel_dim")
    bins = bins or setting(config, "input_feat_size", "feature_projection_input_dim", "mel_bins", default=128)
    source = setting(config, "max_source_positions")
    times = list(dict.fromkeys([*([2 * source] if source else []), 64, 200]))
    last = [torch.randn(1, bins, time) for time in times]
    forms = [form for grid in last for form in (grid, grid.transpose(1, 2).contiguous())]
    return [*forms, torch.randn(1, 1024, bins)]


def waves(config: Any) -> list[Tensor]:
    """Raw sound, without and with a channel."""
    shapes = ((BATCH, 4000), (BATCH, 1, 4000), (1, 3840), (1, 1, 9600), (1, 16000))
    return [torch.randn(*shape) for shape in shapes]


def _sounds(config: Any) -> list[Any]:
    return [*grids(config), *waves(config)]


def _embeddings(config: Any) -> list[Tensor]:
    width, other = _width(config), setting(config, "input_dim", "num_mel_bins", "input_size", default=80)
    shapes = [
        (BATCH, LENGTH, width),
        (GRID * GRID, width),
        (BATCH, width, LENGTH),
        (1, 40, other),
        (1, 1, 3200),
    ]
    return [torch.randn(*shape) for shape in shapes]


def _flattened(config: Any) -> list[Tensor]:
    """Patches that carry their row and column in front."""
    places = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float().expand(BATCH, -1, -1)
    width = setting(config, "patch_embed_hidden_size", default=64)
    return [torch.cat([places, torch.randn(BATCH, GRID * GRID, width)], dim=-1)]


def _grid(config: Any) -> list[Tensor]:
    return [torch.tensor([[1, GRID, GRID]])]


def _mask(config: Any) -> list[Tensor]:
    return [torch.ones(BATCH, LENGTH, dtype=torch.long)]


def _past(config: Any) -> list[Tensor]:
    length = setting(config, "context_length", default=32) + max(
        setting(config, "lags_sequence", default=[0])
    )
    channels = setting(config, "num_input_channels", "input_size", default=1)
    return [torch.randn(BATCH, length, channels), torch.randn(BATCH, length)]


def _past_features(config: Any) -> list[Tensor]:
    return [torch.randn(BATCH, _past(config)[0].shape[1], setting(config, "num_time_features", default=1))]


def _past_mask(config: Any) -> list[Tensor]:
    return [torch.ones_like(one) for one in _past(config)]


def _image_sizes(config: Any) -> list[Tensor]:
    return [torch.tensor([_side(config)] * count) for count in (BATCH, 1)]


READINGS: dict[str, Reading] = {
    "input_ids": ids,
    "decoder_input_ids": ids,
    "qformer_input_ids": ids,
    "attention_mask": _mask,
    "pixel_values": images,
    "image": images,
    "pixel_values_videos": _clips,
    "flattened_patches": _flattened,
    "input_features": _sounds,
    "input_values": lambda config: [*waves(config), *grids(config)],
    "spectrogram": lambda config: [torch.randn(BATCH, 20, setting(config, "model_in_dim", default=80))],
    "mel_spectrogram": grids,
    "audio_mel": grids,
    "hidden_states": _embeddings,
    "inputs_embeds": _embeddings,
    "encoder_hidden_states": _embeddings,
    "query_embeds": _embeddings,
    "latents": lambda config: [one.transpose(1, 2).contiguous() for one in _embeddings(config)[:1]],
    "bbox": lambda config: [torch.tensor([1, 2, 30, 40]).expand(BATCH, LENGTH, 4).contiguous()],
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "target_sizes": lambda config: [torch.tensor([[GRID, GRID]] * BATCH)],
    "merge_sizes": lambda config: [torch.tensor([1])],
    "image_sizes": _image_sizes,
    "spatial_shapes": lambda config: [torch.tensor([[GRID, GRID]] * BATCH)],
    "pixel_attention_mask": lambda config: [torch.ones(BATCH, GRID * GRID, dtype=torch.long)],
    "aspect_ratio_ids": lambda config: [torch.ones(1, 1, dtype=torch.long)],
    "aspect_ratio_mask": lambda config: [torch.ones(1, 1, 4, dtype=torch.long)],
    "past_values": _past,
    "past_time_features": _past_features,
    "past_observed_mask": _past_mask,
    "past_values_padding": lambda config: [torch.zeros(BATCH, _past(config)[0].shape[1])],
    "freq": lambda config: [torch.zeros(BATCH, 1, dtype=torch.long)],
}
# Inputs that another kind of input needs beside it, if forward takes them.
COMPANIONS: dict[str, tuple[str, ...]] = {
    "pixel_values": (
        "image_grid_thw",
        "grid_thw",
        "image_sizes",
        "spatial_shapes",
        "target_sizes",
        "pixel_attention_mask",
        "bbox",
    ),
    "hidden_states": ("grid_thw",),
}
# Inputs that match other inputs in shape, made once the others are chosen.
FOLLOWERS: dict[str, Callable[[dict[str, Any]], Tensor]] = {
    "input_features_mask": lambda given: torch.ones(
        given["input_features"].shape[0], max(given["input_features"].shape[1:]), dtype=torch.long
    ),
    "audio_mel_mask": lambda given: torch.zeros(given["audio_mel"].shape[:2], dtype=torch.bool),
    "mask": lambda given: None,
}
