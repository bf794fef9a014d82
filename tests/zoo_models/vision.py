"""Real vision models: torchvision and transformers ones, and a U-Net and a detector of our own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo_models.registry import Built, case


@case("real", "vision")
def resnet50(*, full: bool = False, train: bool = False) -> Built:
    """ResNet-50; the small one has one bottleneck a stage."""
    from torchvision.models.resnet import Bottleneck, ResNet

    model = ResNet(Bottleneck, [3, 4, 6, 3]) if full else ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10)
    return model.train(train), (torch.randn(2, 3, *((224, 224) if full else (32, 32))),), {}


@case("real", "vision", "mutates")
def resnet50_train(*, full: bool = False) -> Built:
    """ResNet-50 in train mode, whose batch norms write their statistics."""
    return resnet50(full=full, train=True)


@case("real", "vision")
def vit(*, full: bool = False) -> Built:
    """Vision transformer, ViT-B/16 when full."""
    from torchvision.models.vision_transformer import VisionTransformer

    size = (224, 16, 12, 12, 768, 3072) if full else (32, 8, 2, 2, 32, 64)
    model = VisionTransformer(*size, num_classes=1000 if full else 10)
    return model.eval(), (torch.randn(2, 3, size[0], size[0]),), {}


@case("real", "vision")
def swin(*, full: bool = False) -> Built:
    """Swin transformer with shifted windows, Swin-T when full."""
    from torchvision.models.swin_transformer import SwinTransformer

    if full:
        model = SwinTransformer([4, 4], 96, [2, 2, 6, 2], [3, 6, 12, 24], [7, 7])
    else:
        model = SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)
    side = 224 if full else 32
    return model.eval(), (torch.randn(1, 3, side, side),), {}


@case("real", "vision", "transformers")
def detr(*, full: bool = False) -> Built:
    """DETR: a convolutional backbone, an encoder and a decoder over learned queries."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    if full:
        config = DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=ResNetConfig(out_features=["stage4"]),
        )
    else:
        backbone = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
        )
        config = DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=16,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_queries=5,
            num_labels=4,
        )
    side = 256 if full else 32
    return DetrForObjectDetection(config).eval(), (torch.randn(1, 3, side, side),), {}


class DoubleConv(nn.Sequential):
    """Two convolutions with group norm."""

    def __init__(self, inside: int, outside: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inside, outside):
            layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Encoder and decoder joined by skip connections at every resolution."""

    def __init__(self, *, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(DoubleConv(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for lift, block in zip(self.lift, self.up, strict=True):
            x = block(torch.cat([skips.pop(), lift(x)], dim=1))
        return self.head(x)


@case("real", "vision")
def unet(*, full: bool = False) -> Built:
    """A U-Net with skip connections."""
    model = UNet(width=64 if full else 8, depth=4 if full else 2)
    return model, (torch.randn(1, 3, *((256, 256) if full else (16, 16))),), {}


class CrossStage(nn.Module):
    """Half of the channels pass through residual steps, and every step is concatenated."""

    def __init__(self, channels: int, steps: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.steps = nn.ModuleList(ConvUnit(self.half, self.half, 3, 1) for _ in range(steps))
        self.join = ConvUnit(channels + steps * self.half, channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(x.split(self.half, dim=1))
        for step in self.steps:
            parts.append(parts[-1] + step(parts[-1]))
        return self.join(torch.cat(parts, dim=1))


class ConvUnit(nn.Module):
    """Convolution, batch norm and SiLU in place."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Detector(nn.Module):
    """A one-stage detector in the manner of YOLO: three scales, a grid decoded to boxes, then suppression."""

    def __init__(self, *, width: int, classes: int, steps: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = ConvUnit(3, width // 2, 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvUnit(a, b, 3, 2), CrossStage(b, steps))
            for a, b in zip([width // 2, *widths], widths, strict=False)
        )
        self.lateral = nn.ModuleList(ConvUnit(w, width, 1, 1) for w in widths)
        self.heads = nn.ModuleList(nn.Conv2d(width, 5 + classes, 1) for _ in widths)

    def forward(self, image: Tensor) -> dict[str, Tensor | list[Tensor]]:
        features, x = [], self.stem(image)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        merged: list[Tensor] = []
        for level in (2, 1, 0):
            here = self.lateral[level](features[level])
            if merged:
                here = here + F.interpolate(merged[-1], scale_factor=2, mode="nearest")
            merged.append(here)
        raw = [head(feature) for head, feature in zip(self.heads, reversed(merged), strict=True)]
        boxes, scores = self.decode(raw, image.shape[-1])
        kept = [self.suppress(b, s) for b, s in zip(boxes, scores.amax(-1), strict=True)]
        return {"raw": raw, "boxes": boxes, "scores": scores, "kept": kept}

    def decode(self, raw: list[Tensor], side: int) -> tuple[Tensor, Tensor]:
        """Turn the grids of all scales into corner boxes and class scores."""
        boxes, scores = [], []
        for grid in raw:
            rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid.shape[-2:]), indexing="ij")
            cell = side / grid.shape[-1]
            flat = grid.flatten(2).transpose(1, 2)
            centre = (flat[..., :2].sigmoid() + torch.stack([columns, rows], -1).reshape(-1, 2)) * cell
            extent = flat[..., 2:4].clamp(max=4).exp() * cell
            boxes.append(torch.cat([centre - extent / 2, centre + extent / 2], dim=-1))
            scores.append(flat[..., 4:5].sigmoid() * flat[..., 5:].sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    @staticmethod
    @torch.no_grad()
    def suppress(boxes: Tensor, scores: Tensor, *, overlap: float = 0.5, most: int = 20) -> Tensor:
        """Indices of the boxes that no better box covers, by data-dependent Python control flow."""
        order = scores.argsort(descending=True, stable=True)[:most]
        kept: list[Tensor] = []
        while order.numel() > 0:
            best, order = order[0], order[1:]
            kept.append(best)
            corner = torch.maximum(boxes[best, :2], boxes[order, :2])
            far = torch.minimum(boxes[best, 2:], boxes[order, 2:])
            shared = (far - corner).clamp(min=0).prod(-1)
            areas = [(b[..., 2:] - b[..., :2]).prod(-1) for b in (boxes[best], boxes[order])]
            order = order[shared / (areas[0] + areas[1] - shared) < overlap]
        return torch.stack(kept)


@case("real", "vision", "python-values")
def yolo_like(*, full: bool = False, train: bool = False) -> Built:
    """A YOLO-like detector with decoding and non-maximum suppression in Python."""
    model = Detector(width=64, classes=80, steps=3) if full else Detector(width=8, classes=3, steps=1)
    side = 320 if full else 64
    return model.train(train), (torch.randn(1, 3, side, side),), {}
