"""Where two runs differ numerically.

Both runs are replayed side by side (``side_by_side``), and what every matched pair of operations computed and read
(``paired_inputs``) is compared (``tensor_distance``). What rounding explains is recognised on the way
(``rounding_error``). Operations that read or are called differently are tried once more on the numbers of the first
run, so that a difference is attributed to where it originates (``attribution``). Outputs that are no tensors are
compared by value (``python_outputs``). ``report`` says all of this to a person.
"""
