"""How an operator goes over its elements: what a compiler must know of it to put it in one kernel with others.

======== ==============================================================================================================
VIEW     moves nothing; what reads its output reads the tensor under it
FREE     runs no kernel: gives out memory, asks for a size
POINT    one loop over the result; each element is made from the elements at its own place
ROWS     a reduction or normalisation: a loop over its input, in which some axes are summed up
GATHER   one loop over the result that reads at other places: lookups, pooling, resampling, padding
JOIN     one loop over the result, of which each input makes a part: concatenation
HEAVY    a matrix product or convolution: a library's kernel, or a template that pointwise work can follow
OTHER    everything else: attention kernels, sorting, writes to places, operators that are not torch's own
======== ==============================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from torch_vis.graph import Call, Slot, TensorType
from torch_vis.graph.call import short_name
from torch_vis.ops.cost.data_movement import COPIES, FILLS, RANDOM, VIEWS
from torch_vis.ops.cost.elementwise import WORK
from torch_vis.ops.names import out_of_place, plain_name

Pattern = tuple[tuple[int, bool], ...]  # runs of axes, each with its size and whether it is summed up


class Kind(IntEnum):
    """How an operator goes over its elements."""

    OTHER = 0
    VIEW = 1
    FREE = 2
    POINT = 3
    ROWS = 4
    GATHER = 5
    JOIN = 6
    HEAVY = 7


class Loop(NamedTuple):
    """An operation's loop: its kind, the sizes that it runs over, and which of these it sums up (None: none)."""

    kind: Kind
    shape: tuple[int, ...] = ()
    pattern: Pattern | None = None


JOINED = "cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack".split()
SCATTERED = """
    repeat tile repeat_interleave roll flip fliplr flipud rot90 constant_pad_nd pad _pad_circular _pad_enum
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle diag diag_embed slice_scatter select_scatter
    slice_backward select_backward diagonal_backward im2col one_hot glu glu_backward
    index _unsafe_index index_select gather take take_along_dim embedding nll_loss_backward nll_loss2d_backward
    avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward max_pool2d_with_indices max_pool3d_with_indices
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices_backward _adaptive_avg_pool2d adaptive_avg_pool1d
    _adaptive_avg_pool2d_backward adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_bilinear2d upsample_linear1d upsample_bicubic2d grid_sampler_2d affine_grid_generator
    """.split()
# Copies that are neither pointwise nor made of parts: what they write depends on more than places.
IRREGULAR = """
    block_diag _chunk_cat masked_scatter masked_scatter_backward _pack_padded_sequence _pad_packed_sequence
    pad_sequence diagflat as_strided_scatter diagonal_scatter slice_inverse int_repr unfold_copy cartesian_prod
    combinations lu_unpack vander flatten_dense_tensors split_copy split_with_sizes_copy unbind_copy to_mkldnn
    _mkldnn_reshape _mkldnn_transpose mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight _pin_memory pin_memory
    _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight
    _cudnn_rnn_flatten_weight _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor
    """.split()
POINTWISE = """
    add sub subtract rsub _add_relu addcmul addcdiv polar gelu gelu_backward elu selu celu elu_backward softplus
    softplus_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
    binary_cross_entropy_backward soft_margin_loss_backward where batch_norm_elemt
    """.split()
DRAWN = """
    rand rand_like randn randn_like randint randint_like bernoulli bernoulli_ normal normal_ normal_functional uniform
    uniform_ random random_ exponential exponential_ geometric geometric_ cauchy cauchy_ log_normal log_normal_
    """.split()
SUMS = """
    sum nansum mean nanmean prod amax amin aminmax max min any all argmax argmin var std var_mean std_mean logsumexp
    linalg_vector_norm norm count_nonzero
    """.split()
LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    soft_margin_loss poisson_nll_loss
    """.split()
PRODUCTS = """
    mm addmm bmm baddbmm addbmm mv addmv linear matmul _int_mm _scaled_mm convolution _convolution conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d cudnn_convolution cudnn_convolution_transpose
    mkldnn_convolution thnn_conv2d _slow_conv2d_forward conv_depthwise3d _conv_depthwise2d mkldnn_linear
    """.split()
LAST_DIM = {  # where a softmax names the axis that it sums over
    "_softmax": 1, "softmax": 1, "_log_softmax": 1, "log_softmax": 1, "_safe_softmax": 1,
    "_softmax_backward_data": 2, "_log_softmax_backward_data": 2,
}  # fmt: skip
LAYER_NORMS = {  # and where a normalisation of trailing axes names their sizes
    "native_layer_norm": 1, "layer_norm": 1, "rms_norm": 1, "_fused_rms_norm": 1,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2,
}  # fmt: skip
BATCH_NORMS = {  # and where a batch normalisation says if it takes the batch's own statistics
    "native_batch_norm": 5, "batch_norm": 5, "cudnn_batch_norm": 5, "_native_batch_norm_legit": 5,
    "_native_batch_norm_legit_functional": 5, "native_batch_norm_backward": True, "_batch_norm_impl_index": 5,
    "_native_batch_norm_legit_no_training": None, "_batch_norm_no_update": None,
    "_batch_norm_with_update": True, "_batch_norm_with_update_functional": True, "cudnn_batch_norm_backward": True,
}  # fmt: skip
GROUP_NORMS = {"native_group_norm": (0, 6), "group_norm": (0, 1), "native_group_norm_backward": (1, 8)}

TABLE: dict[str, Kind] = {
    **dict.fromkeys(VIEWS.split(), Kind.FREE),
    **dict.fromkeys(WORK, Kind.POINT),
    **dict.fromkeys([*COPIES.split(), *FILLS.split(), *POINTWISE], Kind.POINT),
    **dict.fromkeys(RANDOM.split(), Kind.OTHER),
    **dict.fromkeys(DRAWN, Kind.POINT),
    **dict.fromkeys(IRREGULAR, Kind.OTHER),
    **dict.fromkeys(SCATTERED, Kind.GATHER),
    **dict.fromkeys(JOINED, Kind.JOIN),
    **dict.fromkeys([*SUMS, *LOSSES, *LAST_DIM, *LAYER_NORMS, *BATCH_NORMS, *GROUP_NORMS], Kind.ROWS),
    **dict.fromkeys(PRODUCTS, Kind.HEAVY),
}
SPACES = ("aten::", "prims::")


def kind_of(op: str) -> Kind:
    """The kind of an operator by its full name, whatever it is called with.

    >>> kind_of("aten::add_.Tensor").name, kind_of("aten::mm").name, kind_of("mylib::scale").name
    ('POINT', 'HEAVY', 'OTHER')
    """
    if not op.startswith(SPACES):
        return Kind.OTHER
    name = short_name(op)
    kind = TABLE.get(name, TABLE.get(out_of_place(name)))
    return Kind.OTHER if kind is None else kind


def loop_of(call: Call, given: dict[int, TensorType], made: Sequence[TensorType]) -> Loop:
    """The loop of one call, from the types of the tensors in its slots and of those that it makes.

    >>> from torch_vis.graph import Call, Slot, TensorType
    >>> x, y = TensorType("float32", (8, 4), (4, 1)), TensorType("float32", (8, 1), (1, 1))
    >>> loop_of(Call("aten::sum.dim_IntList", (Slot(0), (1,), True), ()), {0: x}, [y])
    Loop(kind=<Kind.ROWS: 4>, shape=(8, 4), pattern=((8, False), (4, True)))
    """
    kind = kind_of(call.op)
    if kind in (Kind.OTHER, Kind.FREE) or not made:
        return Loop(Kind.FREE if kind == Kind.FREE else Kind.OTHER)
    if any(type_.layout != "strided" or type_.itemsize is None for type_ in (*given.values(), *made)):
        return Loop(Kind.OTHER)
    if kind != Kind.ROWS:
        return Loop(kind, made[0].shape)
    first = _first(call, given)
    if first is None:
        return Loop(Kind.OTHER)
    if made[0].numel == first.numel and _is_pointwise(call):
        return Loop(Kind.POINT, made[0].shape)
    axes = _axes(call, first, made[0])
    if axes is None:
        return Loop(Kind.OTHER)
    shape, summed = axes
    found = pattern(shape, summed)
    return Loop(Kind.POINT, shape) if found is None else Loop(Kind.ROWS, shape, found)


def pattern(shape: Sequence[int], summed: Sequence[bool]) -> Pattern | None:
    """Axes in runs of those that are kept and those that are summed up; None if none is.

    Sizes of one are left out and neighbours joined, so that ``view`` does not change it.

    >>> pattern((2, 3, 1, 4), (False, False, True, True)), pattern((6, 4), (False, True))
    (((6, False), (4, True)), ((6, False), (4, True)))
    """
    runs: list[tuple[int, bool]] = []
    for size, is_summed in zip(shape, summed, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == bool(is_summed):
            runs[-1] = (runs[-1][0] * size, bool(is_summed))
        else:
            runs.append((size, bool(is_summed)))
    return tuple(runs) if any(is_summed for _, is_summed in runs) else None


def kept(of: Pattern) -> int:
    """How many sums a pattern makes."""
    count = 1
    for size, is_summed in of:
        count *= 1 if is_summed else size
    return count


def _first(call: Call, given: dict[int, TensorType]) -> TensorType | None:
    """The type of the first tensor among the arguments."""
    found = next((arg for arg in call.args if isinstance(arg, Slot)), None)
    return None if found is None else given.get(found.number)


def _is_pointwise(call: Call) -> bool:
    """Whether a call of an operator that can reduce does not: ``max(a, b)``, a loss without reduction, ``eval``."""
    name = plain_name(call.op)
    if name in BATCH_NORMS:
        place = BATCH_NORMS[name]
        return place is None or (place is not True and not _arg(call, place, "training"))
    return name in LOSSES or (name in ("max", "min") and ".other" in call.op)


def _arg(call: Call, place: int, name: str, default: Any = None) -> Any:
    return call.args[place] if place < len(call.args) else dict(call.kwargs).get(name, default)


def _axes(call: Call, first: TensorType, made: TensorType) -> tuple[tuple[int, ...], list[bool]] | None:
    """The sizes that a reduction runs over, and for each if it is summed up; None if the call does not say."""
    name, shape = short_name(call.op), first.shape
    rank = len(shape)
    if name in LAST_DIM:
        return _summed(shape, [_arg(call, LAST_DIM[name], "dim")])
    if name in LAYER_NORMS:
        sizes = _arg(call, LAYER_NORMS[name], "normalized_shape")
        count = len(sizes) if isinstance(sizes, tuple) else 1
        return shape, [axis >= rank - count for axis in range(rank)]
    if name in BATCH_NORMS:
        return shape, [axis != 1 for axis in range(rank)]
    if name in GROUP_NORMS:
        groups = _arg(call, GROUP_NORMS[name][1], "group")
        if not isinstance(groups, int) or not rank or first.numel == 0:
            return None
        rows = shape[0] * groups
        return (rows, first.numel // rows), [False, True]
    if name in LOSSES:
        return shape, [True] * rank
    dims = _arg(call, 2 if name in ("linalg_vector_norm", "norm") else 1, "dim")
    if dims is None or dims == () or isinstance(dims, bool):
        return (shape, [True] * rank) if made.numel == 1 else None
    return _summed(shape, dims if isinstance(dims, tuple) else [dims])


def _summed(shape: tuple[int, ...], dims: Sequence[Any]) -> tuple[tuple[int, ...], list[bool]] | None:
    rank = len(shape)
    if not all(isinstance(dim, int) and -rank <= dim < rank for dim in dims):
        return None
    wanted = {dim % rank for dim in dims}
    return shape, [axis in wanted for axis in range(rank)]
