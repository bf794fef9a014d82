"""``trace_tensor_ids`` and its sequence of operations."""
