"""A stand-in for `expecttest`, which torch's testing lists import and the corpus never uses."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest


def allow_torch_testing() -> None:
    """Let `torch.testing._internal` import where expecttest is not installed."""
    if "expecttest" in sys.modules or importlib.util.find_spec("expecttest") is not None:
        return
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    stub.assert_expected_inline = None  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stub
