"""What is known of torch's operators by their names alone: one table of groups, each operator in one of them.

A group says how its operators go over their elements and which family they take their time like. What an operator
costs is said by its formula (``ops.cost``), which also names the family of those that have none here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

KINDS = (
    "matmul",
    "convolution",
    "attention",
    "recurrent",
    "normalization",
    "softmax",
    "reduction",
    "pooling",
    "indexing",
    "sorting",
    "random",
    "factorization",
    "elementwise",
    "copy",
    "optimizer",
    "view",
    "other",
)
"""The families of operators, in the order of their codes. A ``view`` runs nothing on the device."""


class LoopKind(IntEnum):
    """How an operator goes over its elements; ``ops.loops`` explains them."""

    OTHER = 0
    VIEW = 1
    FREE = 2
    POINT = 3
    ROWS = 4
    GATHER = 5
    JOIN = 6
    HEAVY = 7


class OpGroup(NamedTuple):
    """Operators of ``aten`` that are alike: their loop, their family (None: that of their formula), their names."""

    loop: LoopKind
    family: str | None
    names: str


GROUPS: dict[str, OpGroup] = {
    # tell how memory is to be read, or ask for a size
    "views": OpGroup(
        LoopKind.FREE,
        "copy",
        """
        alias as_strided as_strided_ diagonal expand expand_as permute select slice squeeze squeeze_ t t_
        transpose transpose_ unsqueeze unsqueeze_ unfold view view_as view_as_real view_as_complex unbind split
        split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk hsplit vsplit dsplit
        tensor_split narrow movedim moveaxis swapaxes swapaxes_ swapdims swapdims_ numpy_T mT mH matrix_H
        adjoint unflatten atleast_1d atleast_2d atleast_3d broadcast_to broadcast_tensors meshgrid _conj conj
        _neg_view _reshape_alias _unsafe_view _fw_primal _make_dual _unpack_dual set_data requires_grad_
        retain_grad linalg_diagonal _test_check_tensor empty_quantized _empty_affine_quantized
        _empty_per_channel_affine_quantized _resize_output_ _efficientzerotensor size stride numel dim sym_size
        sym_stride sym_numel sym_storage_offset is_coalesced _has_same_storage_numel is_set_to
        _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets _nested_get_offsets
        _nested_get_values _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen
        _nested_get_ragged_idx _nested_view_from_buffer _nested_view_from_jagged _nested_get_jagged_dummy
        is_pinned record_stream q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points
        q_per_channel_axis qscheme dense_dim sparse_dim _dimI _dimV _nnz _indices _values indices values
        crow_indices col_indices ccol_indices row_indices _coalesced_ _coalesced
        _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims _sparse_coo_tensor_unsafe
        _sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
        _sparse_compressed_tensor_with_dims _assert_async _assert_scalar _functional_assert_async
        _functional_assert_scalar sym_constrain_range sym_constrain_range_for_size
        _functional_sym_constrain_range _functional_sym_constrain_range_for_size _linalg_check_errors _print
        _make_dep_token result_type can_cast is_floating_point is_complex is_conj is_neg
        _debug_has_internal_overlap _use_cudnn_ctc_loss _use_miopen_ctc_loss
        """,
    ),
    # give out memory without contents, or ask without looking at the device
    "unwritten": OpGroup(
        LoopKind.FREE,
        "view",
        """
        detach detach_ lift_fresh set_ empty empty_like empty_strided empty_permuted new_empty
        new_empty_strided resize_ resize_as_ is_same_size _assert_tensor_metadata _fused_sdp_choice
        _cudnn_init_dropout_state
        """,
    ),
    # give Python a number
    "looks": OpGroup(
        LoopKind.OTHER,
        "view",
        """
        _local_scalar_dense item _has_compatible_shallow_copy_type
        """,
    ),
    # read their data once and write them elsewhere, element by element
    "copies": OpGroup(
        LoopKind.POINT,
        "copy",
        """
        clone copy copy_ _copy_from _to_copy to type_as contiguous reshape reshape_as flatten ravel lift
        _lazy_clone _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int
        _cast_Long _cast_Short _autocast_to_full_precision _autocast_to_reduced_precision chalf alias_copy
        as_strided_copy detach_copy diagonal_copy expand_copy permute_copy select_copy slice_copy squeeze_copy
        t_copy transpose_copy unsqueeze_copy view_copy view_as_real_copy view_as_complex_copy narrow_copy
        _reshape_copy _conj_copy _neg_view_copy lift_fresh_copy resize
        """,
    ),
    # copy some elements, and write a constant for the others
    "masked copies": OpGroup(
        LoopKind.POINT,
        "copy",
        """
        tril triu masked_fill
        """,
    ),
    # make one tensor of several
    "joins": OpGroup(
        LoopKind.JOIN,
        "copy",
        """
        cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack
        """,
    ),
    # read at other places than they write
    "rearrangements": OpGroup(
        LoopKind.GATHER,
        "copy",
        """
        repeat tile repeat_interleave roll flip fliplr flipud rot90 constant_pad_nd pad _pad_circular _pad_enum
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle diag diag_embed
        slice_scatter select_scatter slice_backward select_backward diagonal_backward im2col one_hot
        """,
    ),
    # copy to places that depend on more than an element's own
    "repackings": OpGroup(
        LoopKind.OTHER,
        "copy",
        """
        _chunk_cat block_diag diagflat diagonal_scatter as_strided_scatter slice_inverse masked_scatter
        masked_scatter_backward _pack_padded_sequence _pad_packed_sequence pad_sequence int_repr
        _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor _pin_memory pin_memory to_mkldnn
        _mkldnn_reshape _mkldnn_transpose mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight
        _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight
        _cudnn_rnn_flatten_weight cartesian_prod combinations lu_unpack vander flatten_dense_tensors
        unfold_copy unbind_copy split_copy split_with_sizes_copy
        """,
    ),
    # bring elements from one layout to another; the layout decides how many bytes that is
    "conversions": OpGroup(
        LoopKind.OTHER,
        "copy",
        """
        _to_dense to_dense to_padded_tensor nested_to_padded_tensor _to_sparse _to_sparse_csr _to_sparse_csc
        _to_sparse_bsr _to_sparse_bsc to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc
        sparse_mask _sparse_mask_projection _nested_tensor_from_tensor_list _nested_tensor_from_mask
        _nested_tensor_from_mask_left_aligned _nested_from_padded _nested_from_padded_tensor
        _nested_from_padded_and_nested_example _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
        _nested_select_backward copy_sparse_to_sparse copy_sparse_to_sparse_ _convert_indices_from_coo_to_csr
        _convert_indices_from_csr_to_coo
        """,
    ),
    # write one constant everywhere, without reading
    "constants": OpGroup(
        LoopKind.POINT,
        "copy",
        """
        zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full fill fill_ zero zero_
        """,
    ),
    # write without reading
    "fills": OpGroup(
        LoopKind.POINT,
        "copy",
        """
        fill_diagonal_ scalar_tensor arange range linspace logspace eye tril_indices triu_indices
        _new_zeros_with_same_feature_meta hann_window hamming_window blackman_window bartlett_window
        kaiser_window _dim_arange _shape_as_tensor
        """,
    ),
    # draw a random number for each element
    "draws": OpGroup(
        LoopKind.POINT,
        "random",
        """
        rand rand_like randn randn_like randint randint_like bernoulli bernoulli_ normal normal_
        normal_functional uniform uniform_ random random_ exponential exponential_ geometric geometric_ cauchy
        cauchy_ log_normal log_normal_
        """,
    ),
    # draw random numbers that depend on each other
    "samplers": OpGroup(
        LoopKind.OTHER,
        "random",
        """
        randperm poisson binomial multinomial _standard_gamma _sample_dirichlet _philox_uniform
        _philox_uniform_ _philox_normal _philox_normal_ _philox_key_split _philox_key_fold_in
        _fill_mem_eff_dropout_mask_
        """,
    ),
    # compare: a sort of n elements takes about n log2 n
    "sorting": OpGroup(
        LoopKind.OTHER,
        "sorting",
        """
        sort argsort msort topk searchsorted bucketize isin unique_consecutive unique_dim
        unique_dim_consecutive _unique _unique2 nonzero nonzero_numpy nonzero_static argwhere hash_tensor
        """,
    ),
    # compute each element from those in the same place, beside ``cost.elementwise.WORK``
    "pointwise": OpGroup(
        LoopKind.POINT,
        None,
        """
        add sub subtract rsub _add_relu addcmul addcdiv polar gelu gelu_backward elu selu celu elu_backward
        softplus softplus_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
        binary_cross_entropy_backward soft_margin_loss_backward batch_norm_elemt
        """,
    ),
    # read at other places, or windows of them, and compute
    "lookups": OpGroup(
        LoopKind.GATHER,
        None,
        """
        glu glu_backward index _unsafe_index index_select gather take take_along_dim embedding
        nll_loss_backward nll_loss2d_backward avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward
        max_pool2d_with_indices max_pool3d_with_indices max_pool1d max_pool2d max_pool3d
        max_pool2d_with_indices_backward _adaptive_avg_pool2d adaptive_avg_pool1d _adaptive_avg_pool2d_backward
        adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d
        upsample_linear1d upsample_bicubic2d grid_sampler_2d affine_grid_generator
        """,
    ),
    # sum up axes, or take the largest
    "reductions": OpGroup(
        LoopKind.ROWS,
        None,
        """
        sum nansum mean nanmean prod amax amin aminmax max min any all argmax argmin var std var_mean std_mean
        logsumexp linalg_vector_norm norm count_nonzero
        """,
    ),
    # compare two tensors and, as a rule, sum up
    "losses": OpGroup(
        LoopKind.ROWS,
        None,
        """
        mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        soft_margin_loss poisson_nll_loss
        """,
    ),
    # softmax and normalisations
    "normalizations": OpGroup(
        LoopKind.ROWS,
        None,
        """
        _softmax softmax _log_softmax log_softmax _safe_softmax _softmax_backward_data
        _log_softmax_backward_data native_layer_norm layer_norm rms_norm _fused_rms_norm
        native_layer_norm_backward _fused_rms_norm_backward native_batch_norm batch_norm cudnn_batch_norm
        _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm_backward
        _batch_norm_impl_index _native_batch_norm_legit_no_training _batch_norm_no_update
        _batch_norm_with_update _batch_norm_with_update_functional cudnn_batch_norm_backward native_group_norm
        group_norm native_group_norm_backward
        """,
    ),
    # matrix products and convolutions
    "products": OpGroup(
        LoopKind.HEAVY,
        None,
        """
        mm addmm bmm baddbmm addbmm mv addmv linear matmul _int_mm _scaled_mm convolution _convolution conv1d
        conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cudnn_convolution
        cudnn_convolution_transpose mkldnn_convolution thnn_conv2d _slow_conv2d_forward conv_depthwise3d
        _conv_depthwise2d mkldnn_linear
        """,
    ),
}
LOOPS: dict[str, LoopKind] = {name: group.loop for group in GROUPS.values() for name in group.names.split()}
FAMILY_BY_NAME: dict[str, str] = {
    name: group.family
    for group in GROUPS.values()
    if group.family in ("view", "random", "sorting")
    for name in group.names.split()
}
"""The families that a name decides, whatever its formula says."""


RESHAPES = frozenset("view _unsafe_view reshape _reshape_alias flatten unflatten unsqueeze squeeze".split())
"""Operators that give the same elements in the same order another shape."""

UNINITIALIZED = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())
"""Operators that give memory without contents. If it is read before an operation wrote to it, unseen code filled it."""


def names(*groups: str) -> str:
    """The names of some groups, in one string.

    >>> names("joins").split()[:2]
    ['cat', 'concat']
    """
    return " ".join(GROUPS[group].names for group in groups)
