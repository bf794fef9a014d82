"""The kinds of numpy arrays that columns are, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# whole numbers of any width: indices, counts, bytes, nanoseconds
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
# numbers of a kind that is only known at run time
Array = NDArray[Any]
