"""Making a configuration tiny without knowing the architecture: rules by the name of an attribute.

All widths become one width, so that parts that meet (a vision tower and its text model, an encoder and its
decoder) still fit. Where that breaks an architecture's own arithmetic, the next level changes less.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from tools.corpus.hf.overrides import Override

WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_WIDTH, WIDE = 64, 4, 2, 16, 128
LAYERS, VOCABULARY, EXPERTS, POSITIONS = 2, 128, 4, 128

Rule = tuple[str, Callable[[int], int]]

# Attributes that cost time or memory and that nothing else depends on.
_COUNTS: tuple[Rule, ...] = (
    (r"num_kv_shared_layers|num_nextn_predict_layers|num_mtp_.*", lambda v: 0),
    (r"first_k_dense_replace|num_dense_layers|max_window_layers|moe_layer_start_index", lambda v: min(v, 1)),
    (r"num_feat_extract_layers|num_adapter_layers|num_residual_layers|num_lstm_layers", lambda v: v),
    (
        r".*(num_|n_)?(hidden_|encoder_|decoder_)?layers?|n_layers?|depth|layers|num_blocks",
        lambda v: min(v, LAYERS),
    ),
    (r"(.*_)?vocab_size(_per_layer_input)?", lambda v: min(v, VOCABULARY)),
    (
        r"(moe_)?num_(local_)?experts|n_routed_experts|moe_num_experts|num_routed_experts",
        lambda v: min(v, EXPERTS),
    ),
    (r"(moe_|num_)?(experts_per_tok(en)?|topk|top_k|moe_k|moe_topk)", lambda v: min(v, 2)),
    (r"n_group|topk_group|num_expert_group|n_groups_experts", lambda v: 1),
    (r"max_position_embeddings|n_positions|max_seq_len|max_target_positions", lambda v: min(v, POSITIONS)),
    (r"max_source_positions", lambda v: min(v, 32)),
    (r"upsample_initial_channel", lambda v: min(v, 64)),
    (r"context_length", lambda v: min(v, 256)),
    (r"num_queries|num_denoising|train_num_points|num_negatives|num_query_tokens", lambda v: min(v, 10)),
)
_WIDTHS: tuple[Rule, ...] = (
    (r"type_vocab_size|num_channels|in_channels|out_channels|in_chans|audio_channels", lambda v: v),
    (r"qk_head_dim", lambda v: 2 * HEAD_WIDTH),
    (
        r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim|.*head_dim|d_kv|d_head|dim_head|.*_d_head",
        lambda v: HEAD_WIDTH,
    ),
    (r"(q|kv|o)_lora_rank|.*_rank", lambda v: min(v, 16)),
    (
        r".*(intermediate_size|ffn_dim|ff_dim|d_ff|mlp_dim|d_inner|n_inner|ffn_hidden_size|linear_units)",
        lambda v: WIDE,
    ),
    (r"mamba_(n|num)_heads", lambda v: 2 * WIDTH // HEAD_WIDTH),
    (r".*(key_value_heads|kv_heads|num_key_heads)", lambda v: KEY_VALUE_HEADS),
    (r".*(num_heads|n_heads?|attention_heads|num_value_heads)", lambda v: HEADS if v > 1 else v),
    (
        r".*(hidden_size|d_model|embed_dim|n_embd|emb_dim|hidden_dim|projection_dim|embedding_size)",
        lambda v: WIDTH,
    ),
    (
        r"dim|projection_size|project_dim|proj_dim|word_embed_proj_dim|pooler_output_size|output_dim",
        lambda v: WIDTH,
    ),
    (r".*(state_size|d_state|ssm_state_size)", lambda v: 8),
    (r".*chunk_size(?!_feed_forward)", lambda v: min(v, 16)),
    (r"rotary_dim", lambda v: min(v, HEAD_WIDTH)),
    (r"hidden_size_per_layer_input", lambda v: min(v, 16)),
    (r"query_pre_attn_scalar", lambda v: min(v, HEAD_WIDTH)),
    (r"n_groups|mamba_n_groups", lambda v: min(v, 2)),
)
_STAGED = (
    "depths",
    "hidden_sizes",
    "embed_dims",
    "blocks_per_stage",
    "stage_channels",
    "layers",
    "num_blocks",
)
# Values that a checkpoint always brings and some configurations leave empty.
_FILLS = {
    "vocab_size": VOCABULARY,
    "head_dim": HEAD_WIDTH,
    "num_key_value_heads": HEADS,
    "num_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": WIDE,
    "n_shared_experts": 1,
}
_TOKEN = re.compile(r".*token_(id|index)|.*_token_ids?$")


def shrink(config_class: type, override: Override, *, widths: bool, build: bool) -> Any:
    """A small configuration: `widths` narrows it too, `build` constructs it anew so that it derives the rest."""
    config = copy.deepcopy(_default(config_class, override))
    tokens: dict[int, int] = {}
    config = _shrink_one(config, widths=widths, build=build, tokens=tokens)
    _assign(config, override.config)
    return config


def _default(config_class: type, override: Override) -> Any:
    return config_class(**(override.create() if override.create else {}))


def _untouched(config_class: type, override: Override) -> Any:
    config = _default(config_class, override)
    _assign(config, override.config)
    return config


def _shrink_one(config: Any, *, widths: bool, build: bool, tokens: dict[int, int]) -> Any:
    parts = {
        name: _shrink_one(value, widths=widths, build=build, tokens=tokens)
        for name, value in vars(config).items()
        if hasattr(value, "model_type") and hasattr(value, "to_dict")
    }
    changes = _changes(config, widths=widths, tokens=tokens)
    if build:
        keep = {name: value for name, value in _own_values(config).items() if name not in changes}
        made = _construct(type(config), {**keep, **changes, **parts})
        if made is not None:
            return made
    for name, value in {**changes, **parts}.items():
        try:
            setattr(config, name, value)
        except Exception:  # read-only or derived; it keeps its value
            continue
    return config


def _own_values(config: Any) -> dict[str, Any]:
    """What this configuration sets differently from its class, lists that depend on the depth left out."""
    try:
        plain = vars(type(config)())
    except Exception:  # a class without defaults: everything it holds was set
        plain = {}
    simple = (bool, int, float, str)
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, simple) and not name.startswith("_") and plain.get(name) != value
    }


def _construct(config_class: type, values: dict[str, Any]) -> Any | None:
    for form in (values, {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in values.items()}):
        try:
            return config_class(**form)
        except Exception:  # its own checks refuse the values; they are assigned instead
            continue
    return None


def _changes(config: Any, *, widths: bool, tokens: dict[int, int]) -> dict[str, Any]:
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    staged = any(isinstance(values.get(name), (list, tuple)) for name in _STAGED)
    rules = () if staged else _COUNTS + (_WIDTHS if widths else ())
    changes = {name: value for name, value in _FILLS.items() if name in values and values[name] is None}
    for name, value in values.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            new = _image_side(name, value, values) or _by_rule(rules, name, value)
            new = _token(name, value, values, tokens) if _TOKEN.fullmatch(name) else new
        elif isinstance(value, (list, tuple)):
            new = _shorter(name, value, {} if staged else values)
        elif isinstance(value, dict):
            new = _rope(value) if widths else value
        else:
            continue
        if new != value:
            changes[name] = new
    heads, groups = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if "num_key_value_heads" in changes and heads == groups:
        changes["num_key_value_heads"] = changes.get("num_attention_heads", heads)
    return changes


def _by_rule(rules: tuple[Rule, ...], name: str, value: int) -> int:
    for pattern, change in rules:
        if re.fullmatch(pattern, name):
            return change(value) if value > 0 else value
    return value


def _image_side(name: str, value: int, values: dict[str, Any]) -> int | None:
    if name not in ("image_size", "img_size", "pretrain_image_size"):
        return None
    patch = values.get("patch_size")
    patch = patch if isinstance(patch, int) else 16
    return min(value, 4 * patch if patch >= 8 else 64)


def _token(name: str, value: int, values: dict[str, Any], tokens: dict[int, int]) -> int:
    """A token id inside the small vocabulary; equal ids stay equal and different ones different."""
    if value < VOCABULARY - 24:
        return value
    return tokens.setdefault(value, VOCABULARY - 1 - len(tokens))


def _shorter(name: str, value: Any, values: dict[str, Any]) -> Any:
    """Lists that give the depth of stages become ones; lists with an entry a layer lose the layers cut off."""
    if name in (
        "depths",
        "num_block_repeats",
        "blocks_per_stage",
        "stage_num_blocks",
        "stage_numb_of_layers",
    ):
        return type(value)(min(one, 2) if isinstance(one, int) else one for one in value)
    if name.endswith(("token_id", "token_ids")):
        return type(value)(min(one, VOCABULARY - 1) if isinstance(one, int) else one for one in value)
    for layers in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "depth"):
        count = values.get(layers)
        if isinstance(count, int) and count == len(value) and count > LAYERS:
            return _representative(value)
    return value


def _representative(value: Any) -> Any:
    """The first entry and the first different one, so that both kinds of layer are there."""
    other = next((one for one in value if one != value[0]), value[1])
    return type(value)([value[0], other])


def _rope(value: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings whose sections, given or implied, share out the pairs of the narrow heads."""
    changed = {name: _rope(one) if isinstance(one, dict) else one for name, one in value.items()}
    if "rope_type" in value:
        pairs = int(HEAD_WIDTH * (value.get("partial_rotary_factor") or 1.0)) // 2
        side = 3 * pairs // 8
        changed["mrope_section"] = [side, side, pairs - 2 * side]
    return changed


def _assign(config: Any, override: dict[str, Any]) -> None:
    """Set the override's values; a dotted name reaches into a part."""
    for name, value in override.items():
        target = config
        *parts, last = name.split(".")
        for part in parts:
            target = getattr(target, part)
        setattr(target, last, value)


LEVELS: dict[str, Callable[[type, Override], Any]] = {
    "tiny, built": lambda cls, override: shrink(cls, override, widths=True, build=True),
    "tiny, assigned": lambda cls, override: shrink(cls, override, widths=True, build=False),
    "shallow, built": lambda cls, override: shrink(cls, override, widths=False, build=True),
    "shallow, assigned": lambda cls, override: shrink(cls, override, widths=False, build=False),
    "as it is": _untouched,
}
