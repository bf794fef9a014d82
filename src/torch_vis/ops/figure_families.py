"""Which family an operation belongs to, by its name: matrix product, convolution, normalisation…"""

from __future__ import annotations

import re
from functools import lru_cache

from torch_vis.ops.names import forward_name

# In the order of weight: a module is of the first family that one of its operations has.
FAMILIES: dict[str, str] = {
    "attention": r".*attention.*|_native_multi_head.*|_transformer_encoder.*|flex_.*",
    "convolution": r".*conv(olution)?(\d?d)?.*",
    "recurrent": r".*(lstm|gru|rnn).*",
    "matrix product": r"(add)?b?mm|(add)?mv|addr|baddbmm|addbmm|linear.*|matmul|einsum|v?dot|bilinear|_\w*_mm|ger",
    "embedding": r".*embedding.*",
    "normalisation": r".*norm.*|_batch_norm.*",
    "pooling": r".*pool.*|.*upsample.*|.*interpolat.*|.*grid_sampler.*",
    "loss": r".*(loss|cross_entropy|kl_div).*",
    "activation": r".*(relu|gelu|silu|elu|sigmoid|tanh|softmax|softplus|mish|swish|threshold|glu|prelu|softshrink).*",
    "random": r".*(dropout|rand|bernoulli|normal|uniform|multinomial|exponential|poisson).*",
    "optimizer": r"(_fused|_foreach).*",
    "reduction": r"(sum|mean|prod|amax|amin|max|min|argmax|argmin|std|var|var_mean|all|any|logsumexp|cumsum|cumprod"
    r"|topk|sort|median|nansum|count_nonzero|aminmax)(_.*|\d.*)?",
    "memory": r"(view|_?reshape.*|expand|permute|t|transpose|slice|select|squeeze|unsqueeze|split|unbind|cat|stack|"
    r"copy|clone|contiguous|_to_copy|to|empty|zeros?|ones?|full|new|arange|linspace|gather|scatter|index|masked|pad|"
    r"constant_pad|roll|flip|repeat|narrow|detach|alias|lift|as_strided|diagonal|tril|triu|chunk|unfold|fill|"
    r"_unsafe_view|_local_scalar_dense|set|resize|eye|tile|where|_reshape_alias|im2col|col2im|_assert|is_nonzero|item)(_.*|\d.*)?",
    "compiled": r"compiled|opaque.*",
}
OTHER = "elementwise"


@lru_cache(maxsize=4096)
def family(name: str) -> str:
    """The family of an operator's short name; a backward operator is of its forward operator's family.

    >>> family("convolution_backward"), family("addmm"), family("native_layer_norm"), family("mul")
    ('convolution', 'matrix product', 'normalisation', 'elementwise')
    """
    bare = forward_name(name)
    for found, pattern in FAMILIES.items():
        if re.fullmatch(pattern, bare):
            return found
    return OTHER
