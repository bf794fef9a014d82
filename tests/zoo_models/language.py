"""Real language, sequence and speech models, built from configurations with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.zoo_models.registry import Built, case


def _ids(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(3, vocabulary, (batch, length))


@case("real", "language", "transformers")
def bert(*, full: bool = False, train: bool = False) -> Built:
    """BERT encoder with a padding mask, bert-base when full."""
    from transformers import BertConfig, BertModel

    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig() if full else BertConfig(**small, intermediate_size=64, max_position_embeddings=32)
    length = 128 if full else 8
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return BertModel(config).train(train), (_ids(2, length, config.vocab_size),), {"attention_mask": mask}


@case("real", "language", "transformers", "rng")
def bert_train(*, full: bool = False) -> Built:
    """BERT in train mode, with dropout."""
    return bert(full=full, train=True)


class GreedyGeneration(nn.Module):
    """Greedy decoding with a key-value cache: one forward a token."""

    def __init__(self, model: nn.Module, *, tokens: int, cache: Any = None) -> None:
        super().__init__()
        self.model, self.tokens, self.make_cache = model, tokens, cache

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        past = self.make_cache() if self.make_cache else None
        step, produced = ids, [ids]
        for _ in range(self.tokens):
            out = self.model(input_ids=step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            step = out.logits[:, -1:].argmax(-1)
            produced.append(step)
        return torch.cat(produced, dim=1)


def _gpt2(*, full: bool, positions: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = (
        GPT2Config()
        if full
        else GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    config.n_positions = max(positions, 1024 if full else 32)
    return GPT2LMHeadModel(config).eval()


@case("real", "language", "transformers")
def gpt2(*, full: bool = False) -> Built:
    """GPT-2 with its language-model head."""
    model = _gpt2(full=full, positions=32)
    return model, (_ids(2, 128 if full else 8, model.config.vocab_size),), {"use_cache": False}


@case("real", "language", "transformers", "generation", backward=False)
def gpt2_generate(*, full: bool = False, tokens: int = 6) -> Built:
    """GPT-2 generating token after token with a growing key-value cache."""
    model = _gpt2(full=full, positions=tokens + 8)
    return GreedyGeneration(model, tokens=tokens), (_ids(1, 4, model.config.vocab_size),), {}


@case("real", "language", "transformers", "generation", "inplace", backward=False)
def gpt2_generate_static(*, full: bool = False, tokens: int = 6) -> Built:
    """GPT-2 generating into a preallocated key-value cache that is written one slot a step."""
    from transformers import StaticCache

    model = _gpt2(full=full, positions=tokens + 8)
    cache = lambda: StaticCache(config=model.config, max_cache_len=tokens + 8)  # noqa: E731
    return GreedyGeneration(model, tokens=tokens, cache=cache), (_ids(1, 4, model.config.vocab_size),), {}


@case("real", "language", "transformers", "generation", backward=False)
def gpt2_generate_method(*, full: bool = False, tokens: int = 4) -> Built:
    """GPT-2's own `generate` method, traced as a callable."""
    model = _gpt2(full=full, positions=tokens + 8)
    ids = _ids(1, 4, model.config.vocab_size)
    options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate, (ids,), {"attention_mask": torch.ones_like(ids), **options}


@case("real", "language", "transformers")
def t5(*, full: bool = False) -> Built:
    """T5, an encoder and a decoder with relative position biases."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = (
        T5Config()
        if full
        else T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    )
    kwargs = {"input_ids": _ids(2, 7, config.vocab_size), "decoder_input_ids": _ids(2, 5, config.vocab_size)}
    return T5ForConditionalGeneration(config).eval(), (), {**kwargs, "use_cache": False}


_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@case("real", "language", "transformers")
def llama(*, full: bool = False) -> Built:
    """Llama with rotary positions and grouped heads; full is the 1B shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
    }
    config = LlamaConfig(**shape) if full else LlamaConfig(**_DECODER)
    return LlamaForCausalLM(config).eval(), (_ids(2, 8, config.vocab_size),), {"use_cache": False}


@case("real", "language", "transformers", "routing")
def mixtral(*, full: bool = False) -> Built:
    """Mixtral, whose tokens are routed to experts by data; full is four layers of a quarter width."""
    from transformers import MixtralConfig, MixtralForCausalLM

    wide = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4}
    config = MixtralConfig(**wide) if full else MixtralConfig(**_DECODER, num_local_experts=4)
    return MixtralForCausalLM(config).eval(), (_ids(2, 8, config.vocab_size),), {"use_cache": False}


@case("real", "language", "transformers")
def mamba(*, full: bool = False) -> Built:
    """Mamba, a selective state space scanned step by step on the CPU."""
    from transformers import MambaConfig, MambaForCausalLM

    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    config = MambaConfig() if full else MambaConfig(**small)
    return (
        MambaForCausalLM(config).eval(),
        (_ids(1, 32 if full else 6, config.vocab_size),),
        {"use_cache": False},
    )


_SIDE = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}


@case("real", "speech", "transformers")
def whisper(*, full: bool = False) -> Built:
    """Whisper over a log-mel spectrogram, base-sized when full."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in _SIDE.items()}
    small = {**sides, "vocab_size": 64, "d_model": 32, "num_mel_bins": 8}
    limits = {"max_source_positions": 10, "max_target_positions": 16, "suppress_tokens": None}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = (
        WhisperConfig() if full else WhisperConfig(**small, **limits, **tokens, begin_suppress_tokens=None)
    )
    features = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    kwargs = {"decoder_input_ids": _ids(1, 5, config.vocab_size), "use_cache": False}
    return WhisperForConditionalGeneration(config).eval(), (features,), kwargs


class PackedRecurrent(nn.Module):
    """A recurrent net over a packed batch of sequences of different lengths."""

    def __init__(self, cell: type[nn.RNNBase], *, inside: int, width: int, layers: int) -> None:
        super().__init__()
        self.cell = cell(inside, width, num_layers=layers, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.cell(packed)
        padded, sizes = pad_packed_sequence(out, batch_first=True)
        return self.head(padded), sizes


def _recurrent(cell: type[nn.RNNBase], *, full: bool) -> Built:
    model = PackedRecurrent(cell, inside=256 if full else 4, width=512 if full else 6, layers=2)
    return model, (torch.randn(3, 7, 256 if full else 4), torch.tensor([3, 7, 5])), {}


@case("real", "recurrent")
def lstm(*, full: bool = False) -> Built:
    """A two-layer bidirectional LSTM over a packed batch."""
    return _recurrent(nn.LSTM, full=full)


@case("real", "recurrent")
def gru(*, full: bool = False) -> Built:
    """A two-layer bidirectional GRU over a packed batch."""
    return _recurrent(nn.GRU, full=full)


@case("real", "recurrent")
def lstm_cell_loop(*, full: bool = False) -> Built:
    """An LSTMCell unrolled in Python, its state carried from step to step."""

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            state, outs = None, []
            for step in x.unbind(0):
                state = self.cell(step, state)
                outs.append(state[0])
            return torch.stack(outs)

    return Unrolled(), (torch.randn(100 if full else 5, 2, 4),), {}


class Quiet(nn.Module):
    """Runs a module under no_grad or inference_mode."""

    def __init__(self, inner: nn.Module, mode: Any) -> None:
        super().__init__()
        self.inner, self.mode = inner, mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.mode():
            return self.inner(*args, **kwargs)


@case("real", "attention", "fast-path", backward=False)
def multihead_attention_fast_path(*, full: bool = False) -> Built:
    """nn.MultiheadAttention in eval mode without gradients, which runs as one fused operation."""
    width = 512 if full else 16
    model = Quiet(nn.MultiheadAttention(width, 4, batch_first=True).eval(), torch.no_grad)
    x = torch.randn(2, 6, width)
    return model, (x, x, x), {"need_weights": False}


@case("real", "attention", "fast-path", backward=False)
def encoder_layer_fast_path(*, full: bool = False) -> Built:
    """nn.TransformerEncoderLayer in eval mode under inference_mode, which runs as one fused operation."""
    width = 512 if full else 16
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True).eval()
    return Quiet(layer, torch.inference_mode), (torch.randn(2, 6, width),), {}


@case("real", "attention", "fast-path", "nested", backward=False)
def encoder_nested_fast_path(*, full: bool = False) -> Built:
    """nn.TransformerEncoder with a padding mask turns its batch into a nested tensor on the way."""
    width = 512 if full else 16
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    model = Quiet(nn.TransformerEncoder(layer, 2).eval(), torch.no_grad)
    mask = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    return model, (torch.randn(2, 6, width),), {"src_key_padding_mask": mask}


@case("real", "attention", "rng")
def transformer_train(*, full: bool = False) -> Built:
    """nn.Transformer in train mode takes the slow path, with masks and dropout."""
    width = 256 if full else 16
    model = nn.Transformer(width, 4, 2, 2, 2 * width, batch_first=True).train()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    return model, (torch.randn(2, 6, width), torch.randn(2, 5, width)), {"tgt_mask": causal}
