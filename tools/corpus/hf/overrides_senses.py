"""Corrections for architectures that see or hear."""

from __future__ import annotations

from typing import Any

import torch

from tools.corpus.hf.inputs import BATCH, GRID, LENGTH, ids
from tools.corpus.hf.overrides import Override


def _kosmos(model: Any) -> dict[str, Any]:
    """Text in which the first positions stand for the image."""
    count = model.config.latent_query_num
    side = model.config.vision_config.image_size
    tokens = torch.randint(5, 90, (1, count + 6))
    place = torch.zeros_like(tokens)
    place[:, 1 : count + 1] = 1
    return {
        "input_ids": tokens,
        "pixel_values": torch.randn(1, 3, side, side),
        "image_embeds_position_mask": place,
    }


def _idefics(model: Any) -> dict[str, Any]:
    side = model.config.vision_config.image_size
    return {
        "input_ids": ids(model.config)[0],
        "pixel_values": torch.randn(BATCH, 1, 3, side, side),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    }


def _sound_and_features(model: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(1, 1, 6400), "input_features": torch.randn(1, 20, 160)}


def _regions(model: Any) -> dict[str, Any]:
    config = model.config
    return {
        "input_ids": ids(config)[0],
        "visual_feats": torch.randn(BATCH, 5, config.visual_feat_dim),
        "visual_pos": torch.rand(BATCH, 5, config.visual_pos_dim),
    }


def _prompted(model: Any) -> dict[str, Any]:
    """An image with the example and the mask that show what to find."""
    height, width = model.config.image_size
    half = torch.randn(1, 3, height // 2, width)
    return {"pixel_values": half, "prompt_pixel_values": half.flip(2), "prompt_masks": half * 2}


def _spoken(model: Any) -> dict[str, Any]:
    """One sound whose features lie side by side with their count."""
    bins = model.config.num_mel_bins
    return {"input_features": torch.randn(bins, 40), "feature_lens": torch.tensor([40])}


def _minicpm(model: Any) -> dict[str, Any]:
    patch = model.config.patch_size
    return {
        "pixel_values": torch.randn(1, 3, patch, patch * GRID * GRID),
        "target_sizes": torch.tensor([[GRID, GRID]]),
    }


def _placed_patches(model: Any) -> dict[str, Any]:
    """Patches with the column and row of each."""
    patch, side = model.config.patch_size, 6
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))[None]
    return {"pixel_values": torch.rand(1, side * side, 3 * patch**2), "pixel_position_ids": places}


def _tiles(model: Any) -> dict[str, Any]:
    """One image of a batch cut into tiles."""
    config = model.config
    tiles, side = config.max_num_tiles, config.image_size
    return {
        "pixel_values": torch.randn(1, 1, tiles, 3, side, side),
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, tiles, dtype=torch.long),
    }


def _tasks(model: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, 64, 64), "task_inputs": torch.randint(1, 90, (1, 77))}


def _realtime(model: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 50, (1, 8)), "input_features": torch.randn(1, 128, 64)}


def _spectrogram(*shape: int) -> Any:
    return lambda model: {"input_features": torch.randn(*shape)}


def _picture(*shape: int) -> Any:
    return lambda model: {"pixel_values": torch.randn(*shape)}


_MINICPM = Override(inputs=_minicpm)
_SPOKEN = Override(inputs=_spoken)
_CODEC = Override(inputs=_sound_and_features)
_IMAGE_TOKEN = Override(config={"image_token_id": 100})
_GRANITE5 = Override(inputs=_spectrogram(1, 64, 320))
_STAGES = ["stage1", "stage2", "stage3", "stage4"]
_FOUR_LAYERS = {
    "backbone_config.num_hidden_layers": 4,
    "backbone_config.stage_names": ["stem", *_STAGES],
    "backbone_config._out_features": _STAGES,
    "backbone_config._out_indices": [1, 2, 3, 4],
}

_SAM2 = {"blocks_per_stage": [1, 2, 7, 2], "image_size": [128, 128]}
_SAM2_SIZES = {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]}

SENSES: dict[str, Override] = {
    "sam2_hiera_det_model": Override(config=_SAM2),
    "sam2_vision_model": Override(
        config={**{f"backbone_config.{name}": value for name, value in _SAM2.items()}, **_SAM2_SIZES},
        inputs=_picture(1, 3, 128, 128),
    ),
    "sam2": Override(
        config={
            **{f"vision_config.backbone_config.{name}": value for name, value in _SAM2.items()},
            **{f"vision_config.{name}": value for name, value in _SAM2_SIZES.items()},
            "prompt_encoder_config.image_size": 128,
        },
        inputs=_picture(1, 3, 128, 128),
    ),
    "moonshine_streaming": Override(
        config={"num_key_value_heads": 4},
        inputs=lambda model: {
            "input_values": torch.randn(1, 8000),
            "decoder_input_ids": torch.randint(5, 60, (1, 6)),
        },
    ),
    "instructblipvideo": Override(
        config={"video_token_id": 100},
        inputs=lambda model: {
            "pixel_values": torch.randn(1, 2, 3, 56, 56),
            "qformer_input_ids": torch.randint(5, 60, (1, 6)),
            "input_ids": torch.randint(5, 60, (1, LENGTH)),
            "decoder_input_ids": torch.randint(5, 60, (1, 6)),
        },
    ),
    "idefics2_perceiver": Override(
        inputs=lambda model: {
            "context": torch.randn(1, LENGTH, model.config.hidden_size),
            "attention_mask": torch.ones(1, LENGTH, dtype=torch.long),
        }
    ),
    "inkling_audio": Override(inputs=lambda model: {"audio_input_ids": torch.randint(0, 8, (1, 20, 80))}),
    "align": Override(config={"projection_dim": 640}),
    "blip-2": _IMAGE_TOKEN,
    "instructblip": _IMAGE_TOKEN,
    "chameleon": Override(config={"vocabulary_map": {"<image>": 100, "IMGIMGAZ": 4, "IMGIMGBZ": 5}}),
    "clap": Override(
        inputs=lambda model: {
            "input_ids": ids(model.config)[0],
            "input_features": torch.randn(BATCH, 1, 64, 64),
            "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool),
        }
    ),
    "clap_audio_model": Override(
        inputs=lambda model: {
            "input_features": torch.randn(BATCH, 1, 64, 64),
            "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool),
        }
    ),
    "depth_pro": Override(
        config={
            "patch_size": 64,
            "image_model_config.image_size": 64,
            "patch_model_config.image_size": 64,
            "fov_model_config.image_size": 64,
            "intermediate_hook_ids": [1, 0],
        },
        inputs=_picture(1, 3, 256, 256),
    ),
    "deepseek_ocr2": Override(config={"text_config.mlp_layer_types": ["dense", "sparse"]}),
    "florence_vision": Override(inputs=lambda model: {"hidden_states": torch.randn(1, 3, 64, 64)}),
    "fun_asr_nano_encoder": Override(
        inputs=lambda model: {
            "input_features": torch.randn(1, 20, 560),
            "input_features_mask": torch.ones(1, 20, dtype=torch.long),
        }
    ),
    "gemma4_vision": Override(inputs=_placed_patches),
    "granite_speech5_ctc": _GRANITE5,
    "granite_speech5_encoder": _GRANITE5,
    "idefics": Override(inputs=_idefics),
    "kosmos-2": Override(inputs=_kosmos),
    "llama4_vision_model": Override(
        config={"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64}
    ),
    "lxmert": Override(inputs=_regions),
    "minicpm_ocr_vision": _MINICPM,
    "minicpmv4_6_vision": _MINICPM,
    "minicpmv4_7_vision": _MINICPM,
    "mllama_vision_model": Override(config={"intermediate_layers_indices": [0, 1]}, inputs=_tiles),
    "molmo2_vision": Override(inputs=_picture(1, 729, 588)),
    "neucodec": _CODEC,
    "xcodec2": _CODEC,
    "oneformer": Override(inputs=_tasks),
    "phi4_multimodal_audio": Override(
        inputs=lambda model: {"hidden_states": torch.randn(1, 64, model.config.input_size), "mask": None}
    ),
    "qwen2_5_omni_audio_encoder": _SPOKEN,
    "qwen3_omni_moe_audio_encoder": _SPOKEN,
    "seggpt": Override(inputs=_prompted),
    "speecht5": Override(
        model="speecht5.modeling_speecht5:SpeechT5ForSpeechToText",
        inputs=lambda model: {
            "input_values": torch.randn(1, 4000),
            "decoder_input_ids": torch.randint(5, 60, (1, 6)),
        },
    ),
    "timm_backbone": Override(create=lambda: {"backbone": "resnet10t"}),
    "tvp": Override(config={"max_img_size": 64, "visual_prompt_size": 8}),
    "voxtral_realtime": Override(inputs=_realtime),
    "zoedepth": Override(config={**_FOUR_LAYERS, "bottleneck_features": 64}),
    "chmv2": Override(config=_FOUR_LAYERS),
    "tipsv2_dpt": Override(config=_FOUR_LAYERS),
    "depth_anything": Override(config=_FOUR_LAYERS),
    "prompt_depth_anything": Override(config=_FOUR_LAYERS),
    "vitmatte": Override(config={"fusion_hidden_sizes": [32, 16, 8, 4]}),
    "step3p7": Override(config={"text_config.sliding_window": 8}),
}
