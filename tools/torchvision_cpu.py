"""Let `import torchvision` work where its compiled part cannot load.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its library stays unloaded, and the import then stops
at two operators which that library would have declared. Their signatures are all that is missing: with them models,
transforms and timm work, and calling a compiled operator still raises torchvision's own error. Where the library
does load, nothing happens here.

`setup_env.py` copies this file into .venv with a .pth line that calls `arm()`; torch is imported no earlier for it.
"""

import sys

OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries = []  # an operator lives as long as the Library that declared it


class _BeforeRegistrations:
    """A finder that finds nothing: being asked for this module means that torchvision has tried its library."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            sys.meta_path.remove(self)
            declare_missing()
        return None


def declare_missing():
    import torch

    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(operator + SIGNATURE)
            _libraries.append(library)


def arm():
    sys.meta_path.insert(0, _BeforeRegistrations())
