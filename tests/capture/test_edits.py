"""Edits on tensors that they do not suit, and names that are nearly right: one error that says what is there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.errors import NoMatch, UsageError

X = torch.ones(4, 8)
UNSUITED = {
    "swap of one number": tv.edit.swap(99),  # type: ignore[arg-type]
    "swap beyond the rows": tv.edit.swap([0, 1, 2, 9]),
    "mean over a dimension that is not there": tv.edit.mean(5),
    "scale by a text": tv.edit.scale("half"),  # type: ignore[arg-type]
    "project along nothing": tv.edit.project(torch.zeros(8)),
    "noise of a negative width": tv.edit.noise(-1.0),
}


@pytest.mark.parametrize("name", UNSUITED)
def test_an_edit_that_does_not_suit_is_one_clear_error(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    t = tv.trace(model, X)
    with pytest.raises(UsageError, match=r"swap|mean|scale|project|noise"):
        t.run(replace={"0": UNSUITED[name]})
    with (
        pytest.raises(UsageError, match=r"swap|mean|scale|project|noise"),
        tv.live(model, replace={"0": UNSUITED[name]}),
    ):
        model(X)
    assert torch.equal(model(X), t.output), "nothing is left on the model"


def test_a_name_that_no_module_has_is_answered_with_modules() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with pytest.raises(NoMatch) as caught, tv.live(model, keep="layers.3"):
        pass
    assert str(caught.value) == "no module or operation 'layers.3'; there are: '0', '1'"
    with pytest.raises(NoMatch, match="did you mean 'softmax'"), tv.live(model, keep="softmaxx"):
        pass


def test_patch_from_takes_a_slice_of_what_was_kept_as_a_whole() -> None:
    """Two prompts of different lengths, the last position of one put into the other."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    short, long = torch.randn(1, 2, 3), torch.randn(1, 5, 3)
    with tv.live(model, keep="0") as source:
        model(short)
    expected = model[0](long)
    expected[:, -1] = model[0](short)[:, -1]
    patch = {"0[:, -1]": tv.edit.patch_from(source)}
    with tv.live(model, replace=patch):
        assert torch.equal(model(long), expected.relu())
    t = tv.trace(model, long)
    assert torch.equal(t.run(replace=patch).output, expected.relu())
    assert torch.equal(t.run(replace={"0[:, -1]": tv.edit.patch_from(source.kept)}).output, expected.relu())
    with pytest.raises(UsageError, match=r"did not keep '1.*'; it kept '0'"):
        t.run(replace={"1[:, -1]": tv.edit.patch_from(source)})
