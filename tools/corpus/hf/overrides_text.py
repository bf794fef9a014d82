"""Corrections for architectures of text, time series and decisions."""

from __future__ import annotations

from typing import Any

import torch

from tools.corpus.hf.inputs import BATCH, LENGTH, ids
from tools.corpus.hf.overrides import Override


def _series(model: Any) -> dict[str, Any]:
    """A window of the past with its lags, and the future that the decoder reads in training."""
    config = model.config
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    features = config.num_time_features
    return {
        "past_values": torch.randn(BATCH, past),
        "past_time_features": torch.randn(BATCH, past, features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.randn(BATCH, future),
        "future_time_features": torch.randn(BATCH, future, features),
    }


def _decisions(model: Any) -> dict[str, Any]:
    config = model.config
    return {
        "states": torch.randn(BATCH, LENGTH, config.state_dim),
        "actions": torch.randn(BATCH, LENGTH, config.act_dim),
        "rewards": torch.randn(BATCH, LENGTH, 1),
        "returns_to_go": torch.randn(BATCH, LENGTH, 1),
        "timesteps": torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous(),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def _codebooks(model: Any) -> dict[str, Any]:
    """Text for the encoder, and one row of codes a codebook for the decoder."""
    codebooks = model.config.decoder.num_codebooks
    return {
        "input_ids": torch.randint(5, 50, (1, LENGTH)),
        "decoder_input_ids": torch.randint(0, 50, (codebooks, 6)),
    }


def _depth_codes(model: Any) -> dict[str, Any]:
    config = model.config
    return {
        "input_ids": torch.randint(0, 50, (BATCH, config.num_codebooks)),
        "last_hidden_state": torch.randn(BATCH, config.num_codebooks, config.input_size),
    }


def _words_without_cache(model: Any) -> dict[str, Any]:
    return {"input_ids": ids(model.config)[0], "use_cache": False}


_HYBRID = ["linear_attention", "full_attention"]
_SERIES = Override(config={"prediction_length": 6, "num_time_features": 2}, inputs=_series)
_NO_DROPOUT = Override(config={"dropout_rate": 0.0})
_SPARSE = ["dense", "sparse"]

TEXT: dict[str, Override] = {
    "autoformer": Override(
        create=lambda: {"prediction_length": 6, "num_time_features": 2, "label_length": 4}, inputs=_series
    ),
    "informer": Override(create=lambda: {"prediction_length": 6, "num_time_features": 2}, inputs=_series),
    "time_series_transformer": Override(
        create=lambda: {"prediction_length": 6, "num_time_features": 2}, inputs=_series
    ),
    "bamba": Override(config={"attn_layer_indices": [1]}),
    "granitemoehybrid": Override(config={"layer_types": _HYBRID}),
    "jamba": Override(config={"attn_layer_period": 2, "attn_layer_offset": 1}),
    "lfm2_moe": Override(config={"layer_types": ["conv", "full_attention"]}),
    "zamba": Override(
        create=lambda: {"attn_layer_period": 2, "attn_layer_offset": 1},
        config={
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "attention_hidden_size": 128,
        },
    ),
    "deepseek_ocr2_text": Override(config={"mlp_layer_types": _SPARSE}),
    "unlimited_ocr_text": Override(config={"mlp_layer_types": _SPARSE}),
    "step3p5": Override(config={"sliding_window": 8}),
    "xlstm": Override(inputs=_words_without_cache),
    "xmod": Override(config={"default_language": "en_XX"}),
    "mamba2": Override(config={"num_heads": 8, "head_dim": 16, "n_groups": 1}),
    "zamba2": Override(config={"attention_hidden_size": 128}),
    "mistral4": Override(config={"head_dim": 32}),
    "esm": Override(config={"pad_token_id": 1, "mask_token_id": 3}),
    "dbrx": Override(config={"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0}),
    "decision_transformer": Override(inputs=_decisions),
    "moshi_depth": Override(inputs=_depth_codes),
    "musicgen": Override(
        model="musicgen.modeling_musicgen:MusicgenForConditionalGeneration", inputs=_codebooks
    ),
    "musicgen_melody": Override(
        model="musicgen_melody.modeling_musicgen_melody:MusicgenMelodyForConditionalGeneration",
        inputs=_codebooks,
    ),
    "blt": Override(
        config={"decoder_config.hidden_size_global": 64, "encoder_config.hidden_size_global": 64},
        inputs=_words_without_cache,
    ),
    "pix2struct_text_model": Override(config={"initializer_range": 0.02}),
    "qwen3_omni_moe_talker_text": Override(config={"shared_expert_intermediate_size": 64}),
    "t5gemma2_decoder": _NO_DROPOUT,
    "t5gemma2_encoder": Override(config={"text_config.dropout_rate": 0.0}),
    "t5gemma2_text": _NO_DROPOUT,
    "reformer": Override(
        config={"axial_pos_shape": (4, 8), "axial_pos_embds_dim": (32, 32)},
        inputs=lambda model: {"input_ids": torch.randint(5, 90, (1, 32))},
        prepare=lambda model: model.train(),
    ),
    "muse_glimmer_assistant": Override(
        inputs=lambda model: {
            "noise_embeds": torch.randn(BATCH, 4, model.config.hidden_size),
            "context_hidden_states": torch.randn(BATCH, LENGTH, 2 * model.config.hidden_size),
        }
    ),
    "qwen4_exp_text": Override(
        config={
            "layer_types": ["linear_attention", "full_attention"],
            "ngram_vocab_size_base": 200,
            "split_ngram_parts": 2,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
        }
    ),
    "perceiver": Override(inputs=lambda model: {"inputs": torch.randn(BATCH, LENGTH, model.config.d_model)}),
}
