"""Graphs of transformers' models from Dynamo: DETR, BERT, ViT and a YOLO, from configurations, with random weights.

python examples/huggingface_models.py --model detr|bert|vit|yolo|all [--save-graph output/graph.py] [--small]
"""

from __future__ import annotations

import argparse
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_vis as tv

Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def detr(small: bool) -> Made:
    """Detection by a transformer over the features of a ResNet."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    sizes: dict[str, Any] = {}
    stem: dict[str, Any] = {"depths": [3, 4, 6, 3]}
    side = 480
    if small:
        stem = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
        sizes = {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
        }
        sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 5}
        side = 64
    backbone = ResNetConfig(out_features=["stage4"], layer_type="bottleneck", **stem)
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone, **sizes
    )
    mask = torch.ones(1, side, side, dtype=torch.int64)
    return DetrForObjectDetection(config), {"pixel_values": torch.randn(1, 3, side, side), "pixel_mask": mask}


def bert(small: bool) -> Made:
    """An encoder of text."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(**(sizes | {"vocab_size": 100} if small else {}))
    ids = torch.randint(0, config.vocab_size, (1, 16 if small else 128))
    return BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vit(small: bool) -> Made:
    """A classifier of images by patches."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = ViTConfig(**(sizes | {"image_size": 32, "patch_size": 8} if small else {}))
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(1, 3, config.image_size, config.image_size)
    }


def yolo(small: bool) -> Made:
    """YOLOS: detection by a plain vision transformer."""
    from transformers import YolosConfig, YolosForObjectDetection

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    sizes |= {"image_size": [32, 64], "patch_size": 8, "num_detection_tokens": 5}
    config = YolosConfig(**(sizes if small else {}))
    height, width = config.image_size
    return YolosForObjectDetection(config), {"pixel_values": torch.randn(1, 3, height, width)}


MODELS: dict[str, Callable[[bool], Made]] = {"detr": detr, "bert": bert, "vit": vit, "yolo": yolo}


def show(name: str, small: bool, save: Path | None) -> None:
    """Trace one model with Dynamo, print what was found, and save the graph where that was asked for."""
    model, inputs = MODELS[name](small)
    model.eval()
    started = time.perf_counter()
    with torch.no_grad():
        extractor = tv.trace_model_with_dynamo(model, inputs)
    took = time.perf_counter() - started
    print(f"── {name}: {type(model).__name__}, traced in {took:.1f} s ──\n")
    print(extractor)
    parts = extractor.descriptors("partition")
    flops = [part.flops for part in parts]
    print(f"\n  FLOPs: {'not known' if None in flops else format(sum(f or 0 for f in flops), ',')}")
    if save is None:
        return
    tv.save_graph_to_file(extractor, save)
    print(f"  saved to {save} and {save.with_suffix('.safetensors').name}")
    saved = runpy.run_path(str(save))["load"]()
    if len(parts) == 1 and not isinstance(saved, list):
        with torch.no_grad():
            again = saved(**inputs)
        same = all(
            torch.equal(again[key], item)
            for key, item in extractor.trace.output.items()
            if torch.is_tensor(item)
        )
        print(f"  the file gives the model's outputs: {'bit for bit' if same else 'NO'}")


def main() -> None:
    """Run the models that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=[*MODELS, "all"], default="bert")
    parser.add_argument(
        "--save-graph", metavar="PATH", type=Path, help="a .py file; with --model all, one for each model"
    )
    parser.add_argument("--small", action="store_true", help="small configurations, to try it out")
    options = parser.parse_args()
    if options.save_graph is not None and options.save_graph.suffix != ".py":
        parser.error(f"--save-graph names a Python file, which ends in .py, not {options.save_graph}")
    torch.manual_seed(0)
    names = list(MODELS) if options.model == "all" else [options.model]
    for name in names:
        path = options.save_graph
        if path is not None and len(names) > 1:
            path = path.with_name(f"{path.stem}_{name}{path.suffix}")
        show(name, options.small, path)


if __name__ == "__main__":
    main()
