"""What hosts usually take to issue operations to a GPU, in units of what one small operation takes them.

Hosts differ in pace more than in this: of five calibrations of one kind of machine, at paces from 6.5 to 10 µs and
often disturbed, the quietest say as much of the others' runs as their own do. The figures are the means of three of
them (torch 2.11, Python 3.12), rounded.
"""

from __future__ import annotations

SURE, LEAST = 0.1, 0.05  # how far a figure is off: in relation to it, and at the least

# without gradients, with a record for backward, in backward
KINDS: dict[str, tuple[float, float, float]] = {
    "attention": (1.65, 1.9, 1.85),
    "convolution": (2.8, 3.85, 3.65),
    "copy": (1.7, 2.2, 1.65),
    "elementwise": (1.35, 2.0, 1.5),
    "indexing": (1.4, 1.85, 1.75),
    "matmul": (1.55, 1.5, 1.1),
    "normalization": (2.0, 2.25, 2.15),
    "pooling": (1.55, 2.05, 1.95),
    "reduction": (0.9, 1.6, 1.3),
    "softmax": (1.05, 1.6, 1.5),
    "view": (0.35, 0.6, 1.15),
}
OPERATORS: dict[str, tuple[float, float, float]] = {
    "attention/_scaled_dot_product_cudnn_attention": (0.5, 0.2, 0.0),
    "attention/_scaled_dot_product_cudnn_attention_backward": (0.0, 0.0, 0.15),
    "copy/cat": (0.8, 0.6, 0.2),
    "copy/clone": (-0.25, -0.05, 0.05),
    "copy/copy": (0.0, 0.0, -0.4),
    "copy/select_backward": (0.0, 0.0, 0.3),
    "elementwise/add": (0.25, 0.15, 0.05),
    "elementwise/div": (0.0, 0.0, -0.15),
    "elementwise/hardtanh": (0.85, 0.85, 0.0),
    "elementwise/hardtanh_backward": (0.0, 0.0, 0.75),
    "elementwise/mul": (-0.1, -0.15, -0.3),
    "elementwise/native_dropout": (0.25, 0.15, 0.0),
    "elementwise/native_dropout_backward": (0.0, 0.0, 0.15),
    "elementwise/relu": (0.15, 0.3, 0.0),
    "elementwise/sigmoid": (-0.2, -0.15, 0.0),
    "elementwise/sigmoid_backward": (0.0, 0.0, -0.15),
    "elementwise/silu": (-0.6, -0.35, 0.0),
    "elementwise/silu_backward": (0.0, 0.0, -0.3),
    "elementwise/threshold_backward": (0.0, 0.0, 0.25),
    "matmul/addmm": (0.6, -0.3, 0.0),
    "matmul/bmm": (-0.3, -0.2, -0.35),
    "matmul/mm": (0.1, 0.15, -0.25),
    "normalization/cudnn_batch_norm": (0.25, 0.45, 0.0),
    "normalization/cudnn_batch_norm_backward": (0.0, 0.0, 0.4),
    "normalization/native_batch_norm": (-0.3, -0.35, 0.0),
    "normalization/native_batch_norm_backward": (0.0, 0.0, -0.35),
    "normalization/native_group_norm": (0.4, 0.4, 0.0),
    "normalization/native_group_norm_backward": (0.0, 0.0, 0.35),
    "normalization/native_layer_norm": (0.4, 0.05, 0.0),
    "pooling/max_pool2d_with_indices": (0.55, 0.35, 0.0),
    "pooling/max_pool2d_with_indices_backward": (0.0, 0.0, 0.3),
    "pooling/upsample_nearest2d": (-0.2, -0.1, 0.0),
    "pooling/upsample_nearest2d_backward": (0.0, 0.0, -0.1),
    "reduction/mean": (-0.1, -0.2, 0.0),
    "reduction/sum": (0.05, 0.0, -0.35),
    "view/detach": (0.0, 0.0, 0.4),
    "view/slice": (0.0, 0.0, 0.15),
}
TERMS: dict[str, float] = {
    **{
        f"{mode}/{name}": units
        for table in (KINDS, OPERATORS)
        for name, row in table.items()
        for mode, units in zip(("plain", "grad", "backward"), row)
        if units
    },
    "optimizer/optimizer": 3.0,
    "optimizer/optimizer/_foreach_add": 0.3,
    "optimizer/optimizer/_foreach_mul": 0.15,
    "optimizer/view": 0.0,
    "scope": 0.35,
    "launch": 1.05,
    "encoder": 17.5,
    "heads": 8.6,
    "tensor": 0.15,
    "backward": 8.8,
    "optimizer": 14.2,
    "run": 0.0,
}
"""By the names of ``HostCosts.terms``."""
