"""Models with attention heads to be cut: some of our own, and of each family of a library one that is small."""

from __future__ import annotations

import torch
from torch import nn


class Kept(nn.Module):
    """The number of heads in an attribute, the width of one inferred: with fewer rows it runs, and is wrong."""

    def __init__(self, heads=4, width=24, size=8):
        super().__init__()
        self.heads, self.scale = heads, size**-0.5
        self.to_qkv, self.to_out = (
            nn.Linear(width, 3 * heads * size, bias=False),
            nn.Linear(heads * size, width),
        )

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v
        return x + self.to_out(mixed.transpose(1, 2).reshape(b, n, -1))


class Summed(nn.Module):
    """By einsum, keys and values in one projection, sizes in the settings that all layers share."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.q, self.kv, self.o = nn.Linear(24, 32), nn.Linear(24, 64), nn.Linear(32, 24)

    def forward(self, x):
        h, d = self.config.heads, 8
        q, (k, v) = self.q(x).unflatten(-1, (h, d)), self.kv(x).unflatten(-1, (2, h, d)).unbind(-3)
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) / d**0.5).softmax(-1)
        return x + self.o(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class Shared(nn.Module):
    """Two layers that look at the same settings."""

    def __init__(self):
        super().__init__()
        config = type("ConfigCorrection", (), {})()
        config.heads = 4
        self.a, self.b = Summed(config), Summed(config)

    def forward(self, x):
        return self.b(self.a(x))


class Torch(nn.Module):
    """Torch's own attention, with masks of both kinds."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, **options)
        self.first = options.get("batch_first", False)

    def forward(self, x):
        x = x if self.first else x.transpose(0, 1)
        length = 5
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        padding = torch.zeros(2, length, dtype=torch.bool, device=x.device)
        padding[1, 3:] = True
        return self.attention(x, x, x, attn_mask=causal, key_padding_mask=padding)[
            0
        ]  # weights nobody looks at


def _of(name, **options):
    import transformers

    kind = getattr(transformers, name)
    return kind(kind.config_class(**options)).eval()


def _ids():
    return (torch.randint(3, 40, (2, 5)),)


WIDE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}


def bert(**options):
    return _of("BertModel", **WIDE, vocab_size=40, **options), _ids()


def gpt2():
    tokens = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0}
    return _of("GPT2LMHeadModel", n_embd=32, n_head=4, n_layer=2, n_positions=8, **tokens), _ids()


def llama(**options):
    return _of("LlamaForCausalLM", **WIDE, num_key_value_heads=2, vocab_size=40, **options), _ids()


def phi3():
    made = _of("Phi3Model", **WIDE, num_key_value_heads=2, vocab_size=40, pad_token_id=0)
    return made, _ids()


def bigcode():
    tokens = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0}
    return _of("GPTBigCodeModel", n_embd=32, n_head=4, n_layer=2, n_positions=8, **tokens), _ids()


def neox():
    return _of("GPTNeoXModel", **WIDE, vocab_size=40), _ids()


def vit():
    made = _of("ViTForImageClassification", **WIDE, image_size=16, patch_size=8)
    return made, (torch.randn(2, 3, 16, 16),)


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 16, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return VisionTransformer(**sizes), (torch.randn(2, 3, 16, 16),)


def encoder_layer():
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return nn.Sequential(layer, nn.Linear(32, 5)), (torch.randn(2, 5, 32),)


X = (2, 5, 24)


# How to make the model; the projections after the heads, and the dimension of their weights that the heads have; what
# a head is called, and how many columns go with it; the numbers that modules keep and that go along.
FAMILIES = {
    "bert": (bert, r"attention\.output\.dense", 1, "head", 8, {"num_attention_heads", "all_head_size"}),
    "bert eager": (
        lambda: bert(attn_implementation="eager"),
        r"attention\.output\.dense",
        1,
        "head",
        8,
        {"num_attention_heads", "all_head_size"},
    ),
    "gpt2": (gpt2, r"attn\.c_proj", 0, "head", 8, {"num_heads", "split_size"}),
    "llama": (llama, r"self_attn\.o_proj", 1, "key/value head", 16, set()),
    "llama eager": (
        lambda: llama(attn_implementation="eager"),
        r"self_attn\.o_proj",
        1,
        "key/value head",
        16,
        set(),
    ),
    "phi3": (
        phi3,
        r"self_attn\.o_proj",
        1,
        "key/value head",
        16,
        {"num_key_value_heads", "config.num_attention_heads", "config.num_key_value_heads"},
    ),
    "one head of keys for all": (bigcode, r"attn\.c_proj", 1, "head", 8, {"num_heads", "embed_dim"}),
    "neox": (neox, r"attention\.dense", 1, "head", 8, set()),
    "vit": (vit, r"attention\.o_proj", 1, "head", 8, {"num_attention_heads"}),
    "timm": (timm_vit, r"attn\.proj", 1, "head", 8, {"num_heads", "attn_dim"}),
    "encoder layer": (
        encoder_layer,
        r"self_attn\.out_proj",
        1,
        "head",
        8,
        {"num_heads", "class", "_qkv_same_embed_dim"},
    ),
    "torch": (
        lambda: (Torch(batch_first=True), (torch.randn(2, 5, 32),)),
        *(r"attention\.out_proj", 1, "head", 8, {"num_heads", "class", "_qkv_same_embed_dim"}),
    ),
    "torch, sequence first, no bias": (
        lambda: (Torch(bias=False), (torch.randn(2, 5, 32),)),
        *(r"attention\.out_proj", 1, "head", 8, {"num_heads", "class", "_qkv_same_embed_dim"}),
    ),
    "kept": (lambda: (nn.Sequential(Kept(), Kept()), (torch.randn(*X),)), "to_out", 1, "head", 8, {"heads"}),
    "settings": (lambda: (Shared(), (torch.randn(*X),)), r"\.o", 1, "head", 8, {"config.heads"}),
}


def made(name):
    torch.manual_seed(0)
    model, args = FAMILIES[name][0]()
    return model.eval(), args
