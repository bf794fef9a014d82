"""Operators without arithmetic: views, copies, fills, random numbers, sorting, and questions about a tensor."""

from __future__ import annotations

from torch_vis.ops.cost.operation import Cost, Operation, nbytes
from torch_vis.ops.cost.registry import aten, family, prims

cost = family("copy")

# What only says how memory is to be read, gives it out unwritten, or asks for a size.
VIEWS = """
    alias as_strided as_strided_ detach detach_ diagonal expand expand_as permute select slice squeeze squeeze_
    t t_ transpose transpose_ unsqueeze unsqueeze_ unfold view view_as view_as_real view_as_complex unbind split
    split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk hsplit vsplit dsplit tensor_split
    narrow movedim moveaxis swapaxes swapaxes_ swapdims swapdims_ numpy_T mT mH matrix_H adjoint unflatten
    atleast_1d atleast_2d atleast_3d broadcast_to broadcast_tensors meshgrid _conj conj _neg_view _reshape_alias
    _unsafe_view lift_fresh _fw_primal _make_dual _unpack_dual set_ set_data requires_grad_ retain_grad
    linalg_diagonal _test_check_tensor empty empty_like empty_strided empty_permuted empty_quantized new_empty
    new_empty_strided _empty_affine_quantized _empty_per_channel_affine_quantized resize_ resize_as_
    _resize_output_ _efficientzerotensor size stride numel dim sym_size sym_stride sym_numel sym_storage_offset
    is_same_size is_coalesced _has_same_storage_numel is_set_to _nested_tensor_size _nested_tensor_strides
    _nested_tensor_storage_offsets _nested_get_offsets _nested_get_values _nested_get_lengths
    _nested_get_max_seqlen _nested_get_min_seqlen _nested_get_ragged_idx _nested_view_from_buffer
    _nested_view_from_jagged _nested_get_jagged_dummy is_pinned record_stream q_scale q_zero_point
    q_per_channel_scales q_per_channel_zero_points q_per_channel_axis qscheme dense_dim sparse_dim _dimI _dimV
    _nnz _indices _values indices values crow_indices col_indices ccol_indices row_indices _coalesced_
    _coalesced _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims _sparse_coo_tensor_unsafe
    _sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
    _sparse_compressed_tensor_with_dims _assert_async _assert_scalar _assert_tensor_metadata
    _functional_assert_async _functional_assert_scalar sym_constrain_range sym_constrain_range_for_size
    _functional_sym_constrain_range _functional_sym_constrain_range_for_size _linalg_check_errors
    _fused_sdp_choice _print _make_dep_token result_type can_cast is_floating_point is_complex is_conj is_neg
    _cudnn_init_dropout_state _debug_has_internal_overlap _use_cudnn_ctc_loss _use_miopen_ctc_loss
    """

# What reads its data once and writes it elsewhere. A copy that turned out to be none is marked as a view by the graph.
COPIES = """
    clone copy copy_ _copy_from _to_copy to type_as contiguous reshape reshape_as flatten ravel lift _lazy_clone
    cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack _chunk_cat block_diag repeat
    tile repeat_interleave roll flip fliplr flipud rot90 tril triu constant_pad_nd pad _pad_circular _pad_enum
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle diag diag_embed diagflat slice_scatter
    select_scatter diagonal_scatter as_strided_scatter slice_inverse slice_backward select_backward
    diagonal_backward masked_fill masked_scatter masked_scatter_backward _pack_padded_sequence
    _pad_packed_sequence pad_sequence im2col int_repr _make_per_tensor_quantized_tensor
    _make_per_channel_quantized_tensor _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int
    _cast_Long _cast_Short _autocast_to_full_precision _autocast_to_reduced_precision chalf _pin_memory pin_memory
    to_mkldnn _mkldnn_reshape _mkldnn_transpose mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight
    _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight
    _cudnn_rnn_flatten_weight cartesian_prod combinations lu_unpack vander one_hot flatten_dense_tensors
    alias_copy as_strided_copy detach_copy diagonal_copy expand_copy permute_copy select_copy slice_copy
    squeeze_copy t_copy transpose_copy unsqueeze_copy unfold_copy view_copy view_as_real_copy
    view_as_complex_copy unbind_copy split_copy split_with_sizes_copy narrow_copy _reshape_copy _conj_copy
    _neg_view_copy lift_fresh_copy resize
    """

# What brings elements from one layout to another; the layout decides how many bytes that is.
CONVERSIONS = """
    _to_dense to_dense to_padded_tensor nested_to_padded_tensor _to_sparse _to_sparse_csr _to_sparse_csc
    _to_sparse_bsr _to_sparse_bsc to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc sparse_mask
    _sparse_mask_projection _nested_tensor_from_tensor_list _nested_tensor_from_mask
    _nested_tensor_from_mask_left_aligned _nested_from_padded _nested_from_padded_tensor
    _nested_from_padded_and_nested_example _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
    _nested_select_backward copy_sparse_to_sparse copy_sparse_to_sparse_ _convert_indices_from_coo_to_csr
    _convert_indices_from_csr_to_coo
    """

FILLS = """
    zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full fill fill_ zero zero_
    fill_diagonal_ scalar_tensor arange range linspace logspace eye tril_indices triu_indices
    _new_zeros_with_same_feature_meta hann_window hamming_window blackman_window bartlett_window kaiser_window
    _dim_arange _shape_as_tensor
    """

RANDOM = """
    rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ normal normal_
    normal_functional uniform uniform_ random random_ exponential exponential_ geometric geometric_ cauchy
    cauchy_ log_normal log_normal_ poisson binomial multinomial _standard_gamma _sample_dirichlet
    _philox_uniform _philox_uniform_ _philox_normal _philox_normal_ _philox_key_split _philox_key_fold_in
    _fill_mem_eff_dropout_mask_
    """

# Comparisons, of which a sort of n elements takes about n log2 n.
SORTING = """
    sort argsort msort topk searchsorted bucketize isin unique_consecutive unique_dim unique_dim_consecutive
    _unique _unique2 nonzero nonzero_numpy nonzero_static argwhere hash_tensor
    """


PRIM_VIEWS = """
    as_strided broadcast_in_dim collapse_view conj empty empty_permuted empty_strided split_dim squeeze transpose
    view_of view_of_dtype
    """
PRIM_COPIES = """
    cat clone collapse convert_element_type copy_strided copy_to device_put fill full full_like iota normal reshape rev
    scalar_tensor uniform as_strided_scatter
    """


@cost(*aten(VIEWS), *prims(PRIM_VIEWS), any_layout=True)
@cost("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", any_layout=True)
def view(op: Operation) -> Cost:
    """Nothing is computed and nothing moved."""
    return Cost(0, 0, 0)


@cost(*aten(COPIES), *aten(FILLS), *aten(RANDOM), *aten(SORTING), *aten(CONVERSIONS), any_layout=True)
@cost(*prims(PRIM_COPIES))
def move(op: Operation) -> Cost:
    """Nothing is computed; what is read and written follows from the types."""
    return op.count()


@cost(*aten("_local_scalar_dense item is_nonzero"), "prims::item", any_layout=True)
def read_one(op: Operation) -> Cost:
    """One element leaves for Python."""
    return Cost(0, 0, op.args[0].itemsize or 0)


@cost(*aten("equal allclose"))
def compare_all(op: Operation) -> Cost:
    """Two tensors are compared as far as they agree; ``allclose`` computes a tolerance for each element."""
    n = op.args[0].numel
    return op.count(add=2 * n, mul=n) if "allclose" in op.op else op.count()


@cost(*aten("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"))
@cost(*aten("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"))
def padding_backward(op: Operation) -> Cost:
    """Every gradient is added to the element that it is a copy of; the input gives only its shape."""
    return op.count(add=op.args[0].numel, bytes=nbytes(op.args[0], *op.outputs))


@cost(*aten("unfold_backward col2im"))
def overlaps_added(op: Operation) -> Cost:
    """Every element of every window is added to its place."""
    return op.count(add=op.args[0].numel)


@cost(
    "_c10d_functional::all_gather_into_tensor",
    "_c10d_functional::all_gather_into_tensor_coalesced",
    "_c10d_functional::all_to_all_single",
    "_c10d_functional::broadcast",
    "c10d::allgather_",
    "c10d::_allgather_base_",
    "c10d::broadcast_",
    "c10d::scatter_",
    "c10d::gather_",
    "c10d::alltoall_",
    "c10d::send",
    "c10d::recv_",
)
def exchange(op: Operation) -> Cost:
    """Data go between processes as they are; the bytes are those of this process."""
    return op.count()
