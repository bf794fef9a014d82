"""Statistics batch by batch are those of everything at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_vis as tv

SHARES = [0.0, 0.001, 0.25, 1 / 3, 0.5, 0.99, 1.0]


@pytest.fixture(params=[1, 7, 64, 1000])
def batches(request: pytest.FixtureRequest) -> list[torch.Tensor]:
    rows = torch.randn(257, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(
        12, 12, generator=torch.Generator().manual_seed(1)
    )
    # far from zero, where sums of squares would cancel
    return list((rows + 1000).split(request.param))


def test_moments(batches: list[torch.Tensor]) -> None:
    rows = torch.cat(batches).double()
    assert torch.allclose(tv.stats.mean(batches), rows.mean(0), rtol=1e-14)
    assert torch.allclose(tv.stats.covariance(batches), rows.T.cov(), rtol=1e-9, atol=1e-9)
    assert torch.allclose(
        tv.stats.covariance(batches, correction=0), rows.T.cov(correction=0), rtol=1e-9, atol=1e-9
    )
    found = tv.stats.pca(batches, 3)
    _, spread, axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    assert torch.allclose(found.variances, spread[:3] ** 2 / 256, rtol=1e-9)
    assert torch.allclose((found.components * axes[:3]).sum(1).abs(), torch.ones(3).double(), atol=1e-9)
    assert torch.allclose(found.project(rows).var(0), found.variances, rtol=1e-9)


def test_alignment(batches: list[torch.Tensor]) -> None:
    rows = torch.cat(batches).double()
    other = torch.tanh(rows - 1000) @ torch.randn(12, 5, generator=torch.Generator().manual_seed(2)).double()
    steps = [len(batch) for batch in batches]
    a, b = rows - rows.mean(0), other - other.mean(0)
    # by its definition on kernels, samples by samples
    expected = (a @ a.T * (b @ b.T)).sum() / ((a @ a.T).norm() * (b @ b.T).norm())
    assert math.isclose(tv.stats.cka(batches, other.split(steps)), float(expected), rel_tol=1e-10)


@pytest.mark.parametrize("dtype", "float64 float32 float16 bfloat16 int64 int16 uint8 bool".split())
@pytest.mark.parametrize("scale", [1e-30, 1.0, 100.0])
def test_quantiles_are_exact(dtype: str, scale: float) -> None:
    rows = torch.randn(501, 3, generator=torch.Generator().manual_seed(0)).double() * scale
    rows[::50] = 0.0
    rows[1::50] = -0.0
    rows = (rows.abs() if dtype == "uint8" else rows).to(getattr(torch, dtype))
    expected = np.quantile(rows.double().numpy(), SHARES)
    assert np.array_equal(tv.stats.quantiles(list(rows.split(13)), SHARES).numpy(), expected)


def test_quantiles_of_extremes() -> None:
    rows = torch.tensor([math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0], dtype=torch.float64)
    assert tv.stats.quantiles(list(rows.split(2)), [0, 0.2, 0.4, 0.6, 0.8, 1]).tolist() == sorted(
        rows.tolist()
    )
    assert tv.stats.quantiles(torch.tensor([1.0, math.nan])).isnan().all()


def test_histogram(batches: list[torch.Tensor]) -> None:
    rows = torch.cat(batches).double().numpy()
    for limits in (None, (995.0, 1001.0)):
        found = tv.stats.histogram(batches, 23, range=limits)
        counts, edges = np.histogram(rows, 23, range=limits)
        assert found.counts.tolist() == counts.tolist() and np.allclose(found.edges.numpy(), edges)
        assert int(found.counts.sum()) + found.outside == rows.size
    found = tv.stats.histogram(torch.tensor([0.0, 1.0, math.nan, math.inf]), 2)
    assert found.counts.tolist() == [1, 1] and (found.nan, found.outside) == (1, 1)


def test_features_lie_along_a_dimension() -> None:
    images = torch.randn(6, 3, 4, 5)
    assert torch.allclose(tv.stats.mean(images, dim=1).float(), images.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(tv.stats.mean(images).float(), images.mean((0, 1, 2)), atol=1e-6)
    assert torch.allclose(tv.stats.mean(images, dim=None).float(), images.mean(0).reshape(-1), atol=1e-6)


def test_while_the_model_runs_is_the_same_as_from_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    loader = torch.utils.data.DataLoader(torch.randn(50, 4), batch_size=8)  # type: ignore[arg-type]

    def wanted() -> dict[Any, Any]:
        return {
            "0": [tv.stats.Mean(), tv.stats.Quantiles(SHARES), tv.stats.Histogram(9)],
            "2": tv.stats.PCA(2),
            ("0", "2"): tv.stats.CKA(),
        }

    passing = tv.extract(model, loader, stats=wanted())
    acts = tv.extract(model, loader, stats=wanted(), to=tmp_path)
    assert [*passing] == [*acts.stats] == ["0", "2", ("0", "2")]
    assert torch.allclose(passing["0"][0], acts.stats["0"][0], rtol=1e-14)
    assert torch.equal(passing["0"][1], acts.stats["0"][1])
    assert torch.equal(passing["0"][2].counts, acts.stats["0"][2].counts)
    assert torch.allclose(passing["2"].components, acts.stats["2"].components, atol=1e-9)
    assert math.isclose(passing["0", "2"], acts.stats["0", "2"], rel_tol=1e-12)
    assert math.isclose(passing["0", "2"], tv.stats.cka(acts["0"], acts["2"]), rel_tol=1e-12)
    assert torch.allclose(tv.stats.mean(acts["0"]), passing["0"][0], rtol=1e-14)


def test_bad_input() -> None:
    for call, message in (
        (lambda: tv.stats.mean([]), "gave no batch"),
        (lambda: tv.stats.mean("acts"), "not str"),
        (lambda: tv.stats.mean([torch.ones(2, 3), torch.ones(2, 4)]), "4 features and those before it had 3"),
        (lambda: tv.stats.covariance(torch.ones(1, 3)), "more than 1 rows"),
        (lambda: tv.stats.quantiles(torch.ones(3), [2.0]), "between 0 and 1"),
        (lambda: tv.stats.quantiles(iter([torch.ones(3)])), "an iterator can be gone through once"),
        (lambda: tv.stats.histogram(torch.ones(3), range=(1.0, 1.0)), "least, most"),
        (lambda: tv.stats.histogram(torch.full((3,), math.nan)), "a finite element"),
        (lambda: tv.stats.cka(torch.ones(3, 2), torch.ones(4, 2)), "3 and 4"),
        (lambda: tv.stats.mean(torch.ones(3, dtype=torch.complex64)), "complex"),
        (lambda: tv.stats.mean(torch.eye(3).to_sparse()), "sparse"),
        (lambda: tv.stats.pca(torch.randn(9, 2), 3), "no 3 directions"),
    ):
        with pytest.raises(tv.errors.UsageError, match=message):
            call()
