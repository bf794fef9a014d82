"""The models of the zoo, one subject a file; `tests.zoo` is the way in."""

from tests.zoo_models.torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()  # transformers, timm and torchvision itself fail to import without it
