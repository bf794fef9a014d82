"""``nn.MultiheadAttention`` after some of its heads were cut."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class FewerHeads(torch.nn.MultiheadAttention):
    """A ``MultiheadAttention`` whose heads together may be narrower than what comes in, which torch's own cannot be.

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
        made = self.out_proj(out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            made = made.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return made.squeeze(0 if self.batch_first else 1), None if weights is None else weights.squeeze(0)
        return made, weights

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
