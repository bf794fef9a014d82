"""Operators that compute each element of their result from the elements in the same place.

``WORK`` says what one element takes, by the function's definition with no shared subterm computed twice. Where
a definition has two branches both are counted, as vector code computes both. A factor that is given as the
number 1 is no multiplication.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import (
    Cost,
    Formula,
    Operation,
    SparseType,
    aten,
    elements,
    family,
    is_sized,
    prims,
)

cost = family("elementwise")


class Work(NamedTuple):
    """Additions, products, quotients and mathematical functions for one element."""

    add: int = 0
    mul: int = 0
    div: int = 0
    call: int = 0


# Comparing, choosing, rounding, changing a sign and working on bits are no arithmetic.
FREE = """
    abs absolute neg negative sign sgn signbit positive copysign relu relu6 clamp clamp_min clamp_max clip
    hardtanh threshold hardshrink floor ceil trunc fix round nan_to_num heaviside maximum minimum fmax fmin
    nextafter frexp ldexp eq ne lt le gt ge not_equal less less_equal greater greater_equal isnan isinf isneginf
    isposinf isfinite isreal logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor
    bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ __iand__
    __ior__ __ixor__ __ilshift__ __irshift__ where complex conj_physical _conj_physical resolve_conj resolve_neg
    real imag threshold_backward hardtanh_backward hardshrink_backward softshrink_backward
    """

# Elementary and special functions: each is one, whatever a library makes of it.
FUNCTIONS = """
    exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh
    arcsin arccos arctan arcsinh arccosh arctanh arctan2 atan2 hypot pow float_power fmod remainder gcd lcm angle
    erf erfc erfinv lgamma digamma polygamma mvlgamma i0 igamma igammac
    special_erf special_erfc special_erfinv special_exp2 special_expm1 special_log1p special_gammaln special_gammainc
    special_gammaincc special_digamma special_psi special_polygamma special_multigammaln special_zeta special_erfcx
    special_i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr special_airy_ai
    special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_spherical_bessel_j0
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
    special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    """

WORK: dict[str, Work] = {
    **dict.fromkeys(FREE.split(), Work()),
    **dict.fromkeys(FUNCTIONS.split(), Work(call=1)),
    "frac": Work(add=1),  # x - trunc(x)
    **dict.fromkeys(["mul", "multiply", "square", "deg2rad", "rad2deg", "leaky_relu", "prelu"], Work(mul=1)),
    **dict.fromkeys(["_prelu_kernel", "leaky_relu_backward", "rrelu", "rrelu_with_noise"], Work(mul=1)),
    **dict.fromkeys(["div", "divide", "true_divide", "reciprocal", "floor_divide"], Work(div=1)),
    "rsqrt": Work(call=1, div=1),
    "softshrink": Work(add=2),  # x - l on one side, x + l on the other
    "lerp": Work(add=2, mul=1),  # a + w (b - a)
    "sigmoid": Work(add=1, div=1, call=1),  # 1 / (1 + exp(-x))
    "special_expit": Work(add=1, div=1, call=1),
    "sigmoid_backward": Work(add=1, mul=2),  # g y (1 - y)
    "tanh_backward": Work(add=1, mul=2),  # g (1 - y y)
    "silu": Work(add=1, div=1, call=1),  # x / (1 + exp(-x))
    "silu_backward": Work(add=3, mul=3, div=1, call=1),  # s = 1 / (1 + exp(-x)); g s (1 + x (1 - s))
    "mish": Work(mul=1, call=3),  # x tanh(log1p(exp(x)))
    # t = tanh(log1p(exp(x))); g (t + x sigmoid(x) (1 - t t))
    "mish_backward": Work(add=3, mul=4, div=1, call=4),
    "hardsigmoid": Work(add=1, div=1),  # clamp(x + 3, 0, 6) / 6
    "hardsigmoid_backward": Work(div=1),
    "hardswish": Work(add=1, mul=1, div=1),  # x clamp(x + 3, 0, 6) / 6
    "hardswish_backward": Work(add=1, mul=1, div=1),  # g (x / 3 + 1/2)
    "log_sigmoid": Work(add=1, call=2),  # min(x, 0) - log1p(exp(-|x|))
    "log_sigmoid_forward": Work(add=1, call=2),
    "log_sigmoid_backward": Work(add=1, div=1, call=1),  # g / (1 + exp(x))
    "logit": Work(add=1, div=1, call=1),  # log(x / (1 - x))
    "special_logit": Work(add=1, div=1, call=1),
    "logit_backward": Work(add=1, mul=1, div=1),  # g / (x (1 - x))
    "logaddexp": Work(add=2, call=2),  # max(a, b) + log1p(exp(-|a - b|))
    "logaddexp2": Work(add=3, call=2),  # max(a, b) + log2(1 + exp2(-|a - b|))
    "xlogy": Work(mul=1, call=1),
    "special_xlogy": Work(mul=1, call=1),
    "special_xlog1py": Work(mul=1, call=1),
    "special_entr": Work(mul=1, call=1),  # -x log(x)
    "special_ndtr": Work(mul=2, call=1),  # erfc(-x / √2) / 2
    "sinc": Work(mul=1, div=1, call=1),  # sin(πx) / (πx)
    "special_sinc": Work(mul=1, div=1, call=1),
    "isclose": Work(add=2, mul=1),  # |a - b| <= atol + rtol |b|
    "_prelu_kernel_backward": Work(mul=2),  # w g and x g
    "rrelu_with_noise_backward": Work(mul=1),
    "native_dropout": Work(mul=2),  # x mask / (1 - p), the factor known beforehand
    "_fused_dropout": Work(mul=2),
    "native_dropout_backward": Work(mul=2),
    "_masked_scale": Work(mul=2),
    "alpha_dropout": Work(add=1, mul=2),  # a (x mask + b (1 - mask)), the last term known beforehand
    "feature_alpha_dropout": Work(add=1, mul=2),
    "dropout": Work(mul=1, div=1),  # x (mask / (1 - p))
    "feature_dropout": Work(mul=1, div=1),
    "infinitely_differentiable_gelu_backward": Work(add=2, mul=7, call=2),
    "_standard_gamma_grad": Work(call=1),
    "_dirichlet_grad": Work(call=1),
}
SIZES = "abs absolute sgn sign"  # free for real numbers only
# Operators of the namespace ``prims`` that are the operators of ``aten`` of the same name.
PRIMS = """
    acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil conj_physical cos
    cosh digamma div eq erf erfc exp exp2 expm1 floor fmax fmin fmod frexp gcd ge gt hypot igamma igammac imag
    isfinite le lgamma log log10 log1p log2 lt maximum minimum mul ne neg nextafter pow real reciprocal
    remainder round rsqrt signbit sin sinh sqrt tan tanh trunc where
    """


def work(op: Operation, amount: Work, count: int) -> Cost:
    """The cost of ``count`` elements."""
    return op.count(
        add=amount.add * count, mul=amount.mul * count, div=amount.div * count, call=amount.call * count
    )


def results(op: Operation) -> int | None:
    """How many elements are computed: those of the result, or if a sparse tensor goes into a dense one, its own.

    None where a sparse or nested tensor does not say how many it stores.
    """
    held = [elements(tensor) for tensor in (op.out, *op.tensors())]
    if None in held:
        return None
    sparse = [tensor.stored for tensor in op.tensors() if isinstance(tensor, SparseType)]
    return max(sparse) if sparse and is_sized(op.out) else held[0]


def per_element(amount: Work) -> Formula:
    """A formula of so much work for each element of the result."""

    def formula(op: Operation) -> Cost | None:
        count = results(op)
        return None if count is None else work(op, amount, count)

    return formula


def factor(value: Any) -> int:
    """How many multiplications a scalar factor is: none if it is 1."""
    return 0 if not isinstance(value, TensorType) and value == 1 else 1


for _name, _one in WORK.items():
    if _name not in SIZES.split():
        cost(*aten(_name), *(prims(_name) if _name in PRIMS.split() else ()), any_layout=True)(
            per_element(_one)
        )


@cost(*aten(SIZES), *prims("abs sign"))
def sign_or_size(op: Operation) -> Cost:
    """Free for real numbers; a complex number's absolute value is a function, and its direction a quotient by it."""
    if not op.is_complex:
        return op.count()
    n = op.out.numel
    return Cost(n) if "abs" in op.op else Cost(n + 2 * n)


@cost(*aten("polar"))
def polar(op: Operation) -> Cost:
    """``r cos(φ)`` and ``r sin(φ)``, which are real."""
    return Cost(4 * op.out.numel)


@cost(*aten("add sub subtract rsub _add_relu"), *prims("add sub"), any_layout=True)
def add(op: Operation) -> Cost | None:
    """``a + alpha b``."""
    count = results(op)
    return None if count is None else work(op, Work(add=1, mul=factor(op.arg(2, "alpha", 1))), count)


@cost(*aten("addcmul addcdiv"))
def addcmul(op: Operation) -> Cost:
    """``a + value b c``, or ``b / c``."""
    quotient = int("addcdiv" in op.op)
    muls = factor(op.arg(3, "value", 1)) + 1 - quotient
    return work(op, Work(add=1, mul=muls, div=quotient), op.out.numel)


@cost(*aten("round.decimals special_round"))
def round_decimals(op: Operation) -> Cost:
    """Scaled by a power of ten, rounded, and scaled back."""
    digits = op.arg(1, "decimals", 0)
    return work(op, Work(mul=int(digits != 0), div=int(digits != 0)), op.out.numel)


@cost(*aten("gelu"))
def gelu(op: Operation) -> Cost:
    """``x/2 (1 + erf(x/√2))``, or with ``tanh(√(2/π) (x + 0.044715 x³))`` for the error function."""
    if op.arg(1, "approximate", "none") == "tanh":
        return work(op, Work(add=2, mul=6, call=1), op.out.numel)
    return work(op, Work(add=1, mul=3, call=1), op.out.numel)


@cost(*aten("gelu_backward"))
def gelu_backward(op: Operation) -> Cost:
    """The derivative of ``gelu`` times the gradient."""
    if op.arg(2, "approximate", "none") == "tanh":
        # u = k (x + a x³), t = tanh(u): g (1/2 (1 + t) + 1/2 x (1 - t t) k (1 + 3a x²))
        return work(op, Work(add=5, mul=12, call=1), op.out.numel)
    # g (Φ(x) + x φ(x))
    return work(op, Work(add=2, mul=7, call=2), op.out.numel)


@cost(*aten("elu selu celu"))
def elu(op: Operation) -> Cost:
    """``scale x`` above zero, and ``(scale alpha) expm1(input_scale x)`` below."""
    alpha, scale, input_scale = op.arg(1, "alpha", 1), op.arg(2, "scale", 1), op.arg(3, "input_scale", 1)
    if "selu" in op.op:
        alpha, scale = 1.6732632423543772, 1.0507009873554805
    elif "celu" in op.op:
        input_scale = 1 / alpha
    muls = factor(scale) + factor(scale * alpha) + factor(input_scale)
    return work(op, Work(mul=muls, call=1), op.out.numel)


@cost(*aten("elu_backward"))
def elu_backward(op: Operation) -> Cost:
    """``g scale`` above zero; below, ``g (scale alpha input_scale) exp(input_scale x)``, or from the result ``y``
    ``g input_scale (y + scale alpha)``.
    """
    alpha, scale, input_scale, is_result = op.args[1:5]
    if is_result:
        return work(op, Work(add=1, mul=1 + factor(scale) + factor(input_scale)), op.out.numel)
    muls = 1 + factor(scale) + factor(input_scale) + factor(scale * alpha * input_scale)
    return work(op, Work(mul=muls, call=1), op.out.numel)


@cost(*aten("softplus softplus_backward"))
def softplus(op: Operation) -> Cost:
    """``log1p(exp(beta x)) / beta``; backward ``g z / (z + 1)`` with ``z = exp(beta x)``."""
    if "backward" in op.op:
        scaled = factor(op.arg(2, "beta", 1))
        return work(op, Work(add=1, mul=1 + scaled, div=1, call=1), op.out.numel)
    scaled = factor(op.arg(1, "beta", 1))
    return work(op, Work(mul=scaled, div=scaled, call=2), op.out.numel)


@cost(*aten("glu"))
def glu(op: Operation) -> Cost:
    """``a sigmoid(b)``, where ``a`` and ``b`` are the halves of the input."""
    return work(op, Work(add=1, mul=1, div=1, call=1), op.out.numel)


@cost(*aten("glu_backward"))
def glu_backward(op: Operation) -> Cost:
    """``g s`` and ``g s (1 - s) a`` with ``s = sigmoid(b)``."""
    return work(op, Work(add=2, mul=3, div=1, call=1), op.args[0].numel)
