"""What fused operators are made of, in plain operators: for those of which torch has no decomposition of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

LSTM = 2  # a recurrent layer's mode, as oneDNN counts them


def lstm_layer(
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    *rest: Any,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """One direction of one layer of an LSTM, step by step: ``aten::mkldnn_rnn_layer``, with an empty workspace.

    >>> lstm = torch.nn.LSTM(3, 4)
    >>> x, state = torch.randn(5, 2, 3), torch.zeros(1, 2, 4)
    >>> weights = [weight.detach() for weight in lstm.parameters()]
    >>> y, *_ = lstm_layer(x, *weights, state[0], state[0], False, [], 2, 4, 1, True)
    >>> torch.allclose(y, lstm(x)[0], atol=1e-6)
    True
    """
    if mode != LSTM or len(batch_sizes):
        raise NotImplementedError("only an LSTM over whole sequences is decomposed")
    has_biases = options.get("has_biases", rest[2] if len(rest) > 2 else True)
    h, c = hx.reshape(-1, hx.shape[-1]), cx.reshape(-1, cx.shape[-1])
    given = torch.nn.functional.linear(input, w_ih, b_ih + b_hh if has_biases else None)
    outputs = []
    steps: Any = range(len(input) - 1, -1, -1) if reverse else range(len(input))
    for step in steps:
        i, f, g, o = (given[step] + torch.nn.functional.linear(h, w_hh)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    y = torch.stack(outputs[::-1] if reverse else outputs)
    return y, h.view_as(hx), c.view_as(cx), input.new_empty(0)


# ---------------------------------------------------------------- attention


# the fused kernels of attention, and where their arguments are that are not query, key and value
FUSED_ATTENTION: dict[str, tuple[str, ...]] = {
    "scaled_dot_product_attention": ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    "_scaled_dot_product_attention_math": (
        "attn_mask", "dropout_p", "is_causal", "dropout_mask", "scale", "enable_gqa",
    ),
    "_scaled_dot_product_flash_attention_for_cpu": ("dropout_p", "is_causal", "attn_mask", "scale"),
    "_scaled_dot_product_flash_attention": ("dropout_p", "is_causal", "return_debug_mask", "scale"),
    "_scaled_dot_product_efficient_attention": (
        "attn_mask", "compute_log_sumexp", "dropout_p", "is_causal", "scale",
    ),
    "_scaled_dot_product_cudnn_attention": (
        "attn_mask", "compute_log_sumexp", "dropout_p", "is_causal", "return_debug_mask", "scale",
    ),
    "_scaled_dot_product_fused_attention_overrideable": (
        "attn_mask", "dropout_p", "is_causal", "return_debug_mask", "scale",
    ),
}  # fmt: skip


class AttentionCall(NamedTuple):
    """A call of fused attention: batch × heads × length × width, as the kernel was given them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    scale: float | None

    def weights(self) -> torch.Tensor:
        """The attention weights, batch × heads × queries × keys: each row sums to 1, and to 0 where all is masked.

        >>> q = k = torch.eye(2)[None, None]
        >>> AttentionCall(q, k, q, None, True, 1.0).weights()[0, 0, 0]
        tensor([1., 0.])
        """
        key = self.key
        if key.shape[-3] != self.query.shape[-3]:
            key = key.repeat_interleave(self.query.shape[-3] // key.shape[-3], -3)
        scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        # half precision is widened, as the kernels do
        wide = torch.float32 if self.query.dtype in (torch.float16, torch.bfloat16) else self.query.dtype
        scores = (self.query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
        if self.is_causal:
            rows, columns = scores.shape[-2:]
            future = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        if self.mask is not None:
            if self.mask.dtype == torch.bool:
                scores = scores.masked_fill(~self.mask, -torch.inf)
            else:
                scores = scores + self.mask.to(wide)
        weights = torch.softmax(scores, -1)
        dead = torch.isneginf(scores).all(-1, keepdim=True)
        return weights.masked_fill(dead, 0.0).to(self.query.dtype)

    def output(self) -> torch.Tensor:
        """What the kernel gives without dropout: weights times values."""
        value = self.value
        if value.shape[-3] != self.query.shape[-3]:
            value = value.repeat_interleave(self.query.shape[-3] // value.shape[-3], -3)
        return self.weights().to(value.dtype) @ value


def attention_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AttentionCall:
    """The arguments of a fused attention, by the operator's plain name."""
    given = {**dict(zip(FUSED_ATTENTION[name], args[3:])), **kwargs}
    given.setdefault("attn_mask", kwargs.get("attn_bias"))
    return AttentionCall(
        args[0], args[1], args[2], given.get("attn_mask"), bool(given.get("is_causal", False)), given.get("scale")
    )  # fmt: skip


def _projected_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:
    """Attention weights of queries and keys that are still to be projected, by one weight for queries, keys, values."""
    width = query.shape[-1]
    weights = qkv_weight.split(width)
    biases = qkv_bias.split(width) if qkv_bias is not None else (None, None)
    q, k = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)
        for x, w, b in zip((query, key), weights, biases)
    )
    # these kernels mark what is left out: 0 for queries × keys, 1 for keys of each sample, 2 for both as they are
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask
    if mask is not None and mask_type == 1:
        mask = mask[:, None, None, :]
    return AttentionCall(q, k, q, mask, False, None).weights()


def multi_head_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> torch.Tensor:
    """The weights of ``aten::_native_multi_head_attention``, which projects as well."""
    return _projected_weights(query, key, num_head, qkv_weight, qkv_bias, mask, mask_type)


def encoder_layer_weights(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    """The weights of ``aten::_transformer_encoder_layer_fwd``, torch's whole encoder layer in one kernel."""
    mask, mask_type = (*rest[6:8], None, None)[:2]
    x = src
    if norm_first:
        x = torch.nn.functional.layer_norm(src, (embed_dim,), norm_weight_1, norm_bias_1, eps)
    return _projected_weights(x, x, num_heads, qkv_weight, qkv_bias, mask, mask_type)


# whole layers in one kernel, and the attention weights in them
FUSED_LAYERS: dict[str, Callable[..., torch.Tensor]] = {
    "_native_multi_head_attention": multi_head_weights,
    "_transformer_encoder_layer_fwd": encoder_layer_weights,
}
