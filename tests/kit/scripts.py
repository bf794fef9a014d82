"""The programs that the command line is tried on, as a user would have them in a folder."""

from __future__ import annotations

from pathlib import Path

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.a = nn.Linear(8, width)
        self.b = nn.Linear(width, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

def make_model():
    return Net()

def make_loader():
    return torch.linspace(-1, 1, 80).reshape(10, 8).split(4)

def make_wide():
    return Net(32)

def make_shifted():
    model = Net()
    model.b.bias.data += 0.1
    return model

class Rewritten(Net):
    def forward(self, x):
        return torch.nn.functional.linear(self.a(x).clamp(min=0), self.b.weight) + self.b.bias

def make_rewritten():
    return Rewritten()

class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop = Net(), nn.Dropout(0.5)

    def forward(self, x):
        return self.net(self.drop(x))

class DroppingWide(Dropping):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(8, 8)  # which is not called, but has drawn its numbers

def make_both():
    return Net(), torch.ones(3, 8)

class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(100, 4)

    def forward(self, ids, mask=None):
        found = self.e(ids).sum(1)
        return found if mask is None else found * mask[:, :1]

class Breaking(Net):
    def forward(self, x):
        print("inside the model")
        h = torch.relu(self.a(x))
        if h.sum().item() > 0:
            h = h + 1
        return self.b(h)

class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()

def loss(out):
    return out.square().mean()

def not_scalar(out):
    return out

def asks_for_python():
    raise RuntimeError("set backward=True first")

def doubled(x, y=1):
    return x.sin() * 2 * y

class Summing(nn.Module):
    times = 1

    def forward(self, x):
        return x.sum().item() * self.times

class SummingTwice(Summing):
    times = 2

number = 3
"""

TRAIN = """
import argparse
import sys

import torch
from torch import nn

from net import make_model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--code", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    criterion = nn.MSELoss()
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(2, 8)), torch.zeros(2, 4))
        loss.backward()
        if step == options.fail_at:
            raise ValueError("the script's own")
        optimizer.step()
        print(f"loss {step} {loss.item():.6f}")
    sys.exit(options.code)


if __name__ == "__main__":
    main()
"""

INFER = """
import torch
from net import make_model

model = make_model().eval()
with torch.no_grad():
    for _ in range(4):
        out = model(torch.ones(2, 8))
print("done")
"""

GAN = """
import torch
from net import make_model

one, two = make_model(), torch.nn.Linear(4, 4)
first = torch.optim.SGD(one.parameters(), lr=0.1)
second = torch.optim.SGD(two.parameters(), lr=0.1)
for _ in range(3):
    one(torch.ones(2, 8)).sum().backward()
    first.step()
    two(torch.ones(2, 4)).sum().backward()
    second.step()
"""

MODES = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as stack
from torch.utils.flop_counter import FlopCounterMode
from net import make_model

model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 5):
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    print(step, counter.get_total_flops(), len(stack()))
"""

COMPILED = """
import torch
from torch._dynamo.utils import counters
from net import make_model

model = make_model()
fast = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    fast(torch.ones(2, 8)).sum().backward()
    optimizer.step()
print("compiled", counters["stats"]["unique_graphs"])
"""

ENVIRONMENT = """
import json, os, sys, __main__
early = "torch" in sys.modules
code = sys._getframe().f_code.co_filename
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "main": __main__.__dict__ is globals(), "early": early,
    "path": sys.path[0], "spec": getattr(__spec__, "name", None), "package": __package__, "code": code,
    "names": sorted(k for k in globals() if k.startswith("__")), "loader": type(__loader__).__name__,
}))
"""

TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, place):
        return {"input_ids": torch.full((8,), place), "labels": place % 2}


config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)
options = TrainingArguments(
    output_dir="trainer", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, report_to=[],
    save_strategy="no", disable_tqdm=True, use_cpu=True,
)
done = Trainer(model=BertForSequenceClassification(config), args=options, train_dataset=Data()).train()
print("steps", done.global_step)
"""

ACCELERATED = """
import torch
from accelerate import Accelerator
from net import make_model

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = make_model()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
for (x,) in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
print("steps", 4)
"""

LIGHTNING = """
import pytorch_lightning as pl
import torch
from net import make_model


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 8)), batch_size=2)
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Lit(), data)
print("steps", trainer.global_step)
"""

LSTM = """
import sys
import torch


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 16, batch_first=True)
        self.fc = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


model = Reader()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 4):
    optimizer.zero_grad()
    loss = model(torch.randn(2, 5, 8)).square().mean()
    if sys.argv[1:] == ["fail"] and step == 2:
        raise ValueError("as it was told")
    loss.backward()
    optimizer.step()
"""

PARALLEL = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Block(64) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def make(mesh, layers=6):
    model = Stack(layers)
    for layer in model.layers:
        if "tp" in mesh.mesh_dim_names:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""

FILES = {
    "net.py": NET,
    "parallel.py": PARALLEL,
    "train.py": TRAIN,
    "infer.py": INFER,
    "gan.py": GAN,
    "modes.py": MODES,
    "compiled.py": COMPILED,
    "environment.py": ENVIRONMENT,
    "trainer.py": TRAINER,
    "accelerated.py": ACCELERATED,
    "lit.py": LIGHTNING,
    "lstm.py": LSTM,
    "package/__init__.py": "",
    "package/inside.py": ENVIRONMENT,
    "wrong.py": "x = (\n",
    "config/config.json": '{"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, '
    '"intermediate_size": 32, "vocab_size": 60}',
}


def write(folder: Path) -> Path:
    """Put all of them into a folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"), encoding="utf-8")
    return folder
