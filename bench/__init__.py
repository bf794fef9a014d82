"""The speed and memory figures, each measured beside its peer in one run: ``python -m bench``."""

from __future__ import annotations

FIGURES = {
    "overhead": "time added per operation, against an empty dispatch mode",
    "torchlens": "time added by the whole trace(), against TorchLens",
    "slowdown": "trace() of real models, against the plain run",
    "single_run": "time() of one recorded run, against the run without a recorder",
    "scaling": "a million operations: time, memory, file",
    "irregular_views": "1,600 operations on irregular views of one buffer, and 800",
    "pictures": "figures and files of BERT-base, and of 100,000 operations",
    "web": "the web page: write, open, expand and move, against plain SVG and dagre",
    "first_screen": "what the first screen of a page promises, on 60 models in three windows",
    "predict": "DLBacktrace.predict(), every node kept, against the plain model",
    "tracking": "the tracking interface with a switch off, against all on",
    "dynamo": "trace(via='dynamo'), against Dynamo alone",
    "extraction": "tv.extract of 10,000 samples, against a hook and a loop that writes the same bytes; its memory",
    "workbench": "live activations, 96 patches and again() of GPT-2 small, against hooks, nnsight, TransformerLens",
    "tensor_ids": "a million temporaries as a connected operation sequence",
    "onnx": "ONNX and Model Explorer files: time per operation as runs grow",
    "explorer": "the terminal explorer on 100,000 modules; recording statistics of BERT-base",
    "cli": "torch-vis --help, and what torch-vis run adds to a training",
    "check_cost": "check(), against the replays alone",
    "imports": "import torch_vis beyond import torch",
    "latency": "predicted time of models after a calibration, against the plain run",
    "memory": "peak process memory, against the plain run",
    "analyses": "every analysis of 100,000 operations, and of a tenth as many",
    "coverage": "operators of the zoo and of the corpus that have a FLOPs figure",
    "attribution": "attribution of ten models, against Captum",
    "ranks": "405 B on simulated ranks, against the plain step by shapes; layouts that fit; joined ranks; a real step",
    "memory_prediction": "predicted peak memory of training steps, against the measured one",
}
