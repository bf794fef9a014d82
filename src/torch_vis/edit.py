"""What to put in the place of a tensor: in ``t.run(replace=…)``, ``tv.trace(…, replace=…)`` and ``tv.live(…)``.

>>> import torch, torch_vis as tv
>>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
>>> t.run(replace={"0[:, 0]": tv.edit.zero()}).output[0, 0]
tensor(0.)
"""

from torch_vis.capture.edits import (
    Edit,
    add,
    clamp,
    mean,
    noise,
    patch_from,
    project,
    scale,
    swap,
    zero,
)

__all__ = ["Edit", "add", "clamp", "mean", "noise", "patch_from", "project", "scale", "swap", "zero"]
