"""Work in a forked child, and whether it found what was expected of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import pytest

forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def in_child(work: Callable[[], bool]) -> bool:
    """Whether a forked child found what was expected of it."""
    with warnings.catch_warnings():
        # other threads there may be
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
