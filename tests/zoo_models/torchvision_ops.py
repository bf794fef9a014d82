"""Declarations that let torchvision import where its compiled operators are missing."""

from __future__ import annotations

import torch

_LIBRARIES: list[torch.library.Library] = []
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_torchvision_ops() -> None:
    """Declare the operators that torchvision names at import; call it before torchvision or timm."""
    if _LIBRARIES or torch.version.cuda:  # beside a CUDA build of torch its own library loads
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    _LIBRARIES.append(library)
    for schema in _SCHEMAS:
        if not _is_declared(schema.partition("(")[0]):
            library.define(schema)


def _is_declared(name: str) -> bool:
    try:
        getattr(torch.ops.torchvision, name)
    except AttributeError:
        return False
    return True
