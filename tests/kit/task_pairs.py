"""Pairs of runs with one known change in what people train for a task: sequences, pictures, words with a cache,
experts, diffusion, distillation, a graph network, an actor, and the optimizers and schedulers around them.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_vis as tv
from tests.kit.step_pairs import PAIRS, filled, step_pair


def options_of(defaults: dict[str, Any], options: dict[str, Any]) -> SimpleNamespace:
    """The defaults, but for what is changed."""
    return SimpleNamespace(**{**defaults, **options})


# --- a tagger of sequences ---

TAGGER: dict[str, Any] = {
    "cell": nn.LSTM, "hidden": 6, "layers": 1, "both": False, "dropout": 0.0, "batch_first": True, "flip": False,
    "last": False, "carry": False, "packed": False, "bias": True, "detach": False, "ignore": -100, "clip": None,
    "shift": 0, "reduction": "mean", "smoothing": 0.0, "init": 1.0, "proj": 0, "relu": False, "zero": True,
    "training": True,
}  # fmt: skip


class Tagger(nn.Module):
    """Words, a recurrent net over them, a tag for each."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.words = nn.Embedding(12, 5)
        extra = {"proj_size": o.proj} if o.proj else {}
        self.rnn = o.cell(5, o.hidden, o.layers, batch_first=o.batch_first, bidirectional=o.both, bias=o.bias,
                          dropout=o.dropout, **extra)  # fmt: skip
        self.drop = nn.Dropout(o.dropout)
        self.tags = nn.Linear((o.proj or o.hidden) * (2 if o.both else 1), 4)

    def forward(self, tokens: Tensor) -> Tensor:
        o = self.o
        x = self.words(tokens)
        if o.flip:
            x = x.flip(1)
        h, state = self.rnn(x)
        if o.carry:
            h, _ = self.rnn(x, state)
        if o.detach:
            h = h.detach()
        if o.relu:
            h = h.relu()
        if o.last:
            h = h[:, -1:].expand_as(h)
        return self.tags(self.drop(h))


def tagger(**options: Any) -> tv.Trace:
    """A step of training it."""
    o = options_of(TAGGER, options)
    model = filled(Tagger(o)).train(o.training)
    with torch.no_grad():
        model.tags.weight.mul_(o.init)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    tokens, tags = torch.randint(0, 12, (3, 7)), torch.randint(0, 4, (3, 7))

    def step() -> Tensor:
        if o.zero:
            sgd.zero_grad()
        y = model(tokens)
        if o.shift:
            y, wanted = y[:, : -o.shift], tags[:, o.shift :]
        else:
            wanted = tags
        loss = F.cross_entropy(y.flatten(0, 1), wanted.flatten(), ignore_index=o.ignore, reduction=o.reduction,
                               label_smoothing=o.smoothing)  # fmt: skip
        loss.backward()
        if o.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        sgd.step()
        return loss.detach()

    def steps() -> Tensor:
        step()
        return step()

    return tv.trace(steps, hold=True)


step_pair("tagger: gru", tagger, "rnn LSTM*→ GRU*", "rnn LSTM", cell=nn.GRU)
step_pair(
    "tagger: hidden",
    tagger,
    ("rnn LSTM(hidden_size=6) → LSTM(hidden_size=8)", "tags Linear(6, 4) → Linear(8, 4)"),
    "rnn LSTM(hidden_size=6)",
    hidden=8,
)
step_pair("tagger: layers", tagger, "rnn LSTM*", "rnn LSTM", layers=2)
step_pair(
    "tagger: both directions",
    tagger,
    ("rnn *bidirectional=False*bidirectional=True)", "tags Linear(6, 4) → Linear(12, 4)"),
    "bidirectional=True",
    both=True,
)
step_pair(
    "tagger: time first",
    tagger,
    ("rnn LSTM(batch_first=True) → LSTM(batch_first=False)", "tags mm, add → addmm"),
    "batch_first=False",
    batch_first=False,
)
step_pair("tagger: flipped", tagger, "(root) flip added", "flip added", flip=True)
step_pair("tagger: last state alone", tagger, "(root) slice added", "(root) slice added", last=True)
step_pair(
    "tagger: state carried",
    tagger,
    "rnn select, select, mkldnn_rnn_layer, *added",
    "rnn select, select, mkldnn_rnn_layer",
    carry=True,
)
step_pair("tagger: no bias of cells", tagger, "rnn LSTM*bias*", "rnn LSTM", bias=False)
step_pair("tagger: detached", tagger, "(root) detach added", "detach added", detach=True)
step_pair("tagger: ignored", tagger, "(root) *ignore_index: -100 → 0", "ignore_index: -100 → 0", ignore=0)
step_pair("tagger: shifted", tagger, "(root) slice*", "slice", shift=1)
step_pair("tagger: sum", tagger, "(root) *reduction: 1 → 2", "reduction: 1 → 2", reduction="sum")
step_pair(
    "tagger: smoothing",
    tagger,
    "(root) sum, neg, eq, masked_fill_ and 7 more added",
    "(root) sum, neg, eq",
    smoothing=0.1,
)
step_pair("tagger: init", tagger, (), "most of all tags.weight", init=0.5)
step_pair(
    "tagger: projected",
    tagger,
    ("rnn LSTM(proj_size=0) → LSTM(proj_size=3)", "tags Linear(6, 4) → Linear(3, 4)"),
    "proj_size=3",
    proj=3,
)
step_pair("tagger: relu", tagger, "(root) relu added", "relu added", relu=True)
step_pair(
    "tagger: gradients not set to zero",
    tagger,
    ("tags add_ added (backward)", "rnn add_, *added (backward)", "words add_ added (backward)"),
    "add_ added (backward)",
    zero=False,
)
step_pair(
    "tagger: dropout", tagger, "drop Dropout(p=0.0) → Dropout(p=0.2)", "drop Dropout(p=0.0)", dropout=0.2
)
step_pair("tagger: clipped", tagger, "(root) _foreach_norm, stack, *added (optimizer)", "", clip=0.5)

# --- segmentation ---

SEGMENT: dict[str, Any] = {
    "skip": "cat", "up": "nearest", "size": False, "loss": "ce", "weight": 1.0, "eps": 1.0, "dim": 1, "threshold": None,
    "norm_eps": 1e-5, "act": "relu", "pool": 2, "flipped": False, "channels": False, "gamma": 2.0, "mean": 0.0,
    "transposed": False, "pad": 1, "swap": False,
}  # fmt: skip


class Segmenter(nn.Module):
    """Down, up, and a connection past both."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        acts: dict[str, Any] = {"relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU, "leaky": nn.LeakyReLU}
        self.down = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=o.pad), nn.BatchNorm2d(8, eps=o.norm_eps), acts[o.act]()
        )
        self.pool, self.middle = nn.MaxPool2d(o.pool), nn.Conv2d(8, 8, 3, padding=1)
        if o.up == "transposed":
            self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        else:
            self.up = nn.Upsample(scale_factor=2, mode=o.up)
        self.head = nn.Conv2d(16 if o.skip == "cat" else 8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        o = self.o
        x = (x - o.mean) / 0.5
        if o.flipped:
            x = x.flip(-1)
        if o.channels:
            x = x[:, [2, 1, 0]]
        left = self.down(x)
        right = self.up(self.middle(self.pool(left)))
        if o.skip == "cat":
            y = torch.cat([right, left] if o.swap else [left, right], 1)
        else:
            y = left + right if o.skip == "add" else right
        return self.head(y)


def dice(scores: Tensor, labels: Tensor, o: SimpleNamespace) -> Tensor:
    """One less the overlap."""
    chances = scores.softmax(o.dim)
    target = F.one_hot(labels, 4).permute(0, 3, 1, 2).float()
    both = (chances * target).sum((2, 3))
    return 1 - ((2 * both + o.eps) / (chances.sum((2, 3)) + target.sum((2, 3)) + o.eps)).mean()


def segment(**options: Any) -> tv.Trace:
    """A run of it with its loss, and backward."""
    o = options_of(SEGMENT, options)
    model = filled(Segmenter(o))
    torch.manual_seed(0)
    x, labels = torch.rand(2, 3, 8, 8), torch.randint(0, 4, (2, 8, 8))

    def run() -> Tensor:
        y = model(x)
        if o.loss == "ce":
            return F.cross_entropy(y, labels, torch.tensor([1.0, o.weight, 1.0, 1.0]))
        if o.loss == "dice":
            return dice(y, labels, o)
        rest = F.cross_entropy(y, labels, reduction="none")
        return ((1 - (-rest).exp()) ** o.gamma * rest).mean()

    return tv.trace(run, loss=lambda loss: loss, hold=True)


def focal(**options: Any) -> tv.Trace:
    """With the focal loss."""
    return segment(loss="focal", **options)


def overlap(**options: Any) -> tv.Trace:
    """With the loss of overlaps."""
    return segment(loss="dice", **options)


step_pair(
    "segment: added for joined",
    segment,
    ("(root) cat → add", "head Conv2d(16, 4, 1) → Conv2d(8, 4, 1)"),
    "(root) cat → add",
    skip="add",
)
step_pair(
    "segment: no skip",
    segment,
    ("(root) cat removed", "head Conv2d(16, 4, 1) → Conv2d(8, 4, 1)"),
    "(root) cat removed",
    skip="none",
)
step_pair(
    "segment: joined the other way round",
    segment,
    "(root) cat its operands are swapped",
    "cat, which reads the same tensors in another order",
    swap=True,
)
step_pair("segment: bilinear", segment, "up Upsample*", "up Upsample", up="bilinear")
step_pair("segment: learned up", segment, "up Upsample* → ConvTranspose2d*", "up Upsample", up="transposed")
step_pair(
    "segment: dice",
    segment,
    "(root) _log_softmax, nll_loss2d_forward → _softmax, *",
    "_log_softmax, nll_loss2d_forward → _softmax",
    loss="dice",
)
step_pair("segment: weight of a class", segment, (), "most of all f32[4] from outside", weight=3.0)
step_pair("segment: eps", segment, "down.1 BatchNorm2d*eps*", "eps: 1e-05 → 0.001", norm_eps=1e-3)
step_pair("segment: activation", segment, "down.2 ReLU → SiLU", "down.2 ReLU → SiLU", act="silu")
step_pair("segment: flipped", segment, "(root) flip added", "flip added", flipped=True)
step_pair("segment: bgr", segment, "(root) index added", "index added", channels=True)
step_pair("segment: mean", segment, "(root) sub other: 0.0 → 0.5", "other: 0.0 → 0.5", mean=0.5)
step_pair("focal: gamma", focal, "(root) pow exponent: 2.0 → 1.5", "exponent: 2.0 → 1.5", gamma=1.5)
step_pair("dice: eps", overlap, "(root) *add*other: 1.0 → 1e-06", "other: 1.0 → 1e-06", eps=1e-6)
step_pair("dice: over another dimension", overlap, "(root) _softmax dim: 1 → 0", "dim: 1 → 0", dim=0)

# --- diffusion ---

DIFFUSION: dict[str, Any] = {
    "beta": 0.02, "target": "noise", "steps": 10, "time": True, "scale": 1.0, "prefix": False, "root": True,
    "loss": "mse", "ema": 0.9, "cond": True, "lr": 1e-3, "wd": 0.01, "opt": torch.optim.AdamW, "warm": None,
    "when": "after", "float16": False, "noise": 0, "sched": "cosine", "rest": False,
}  # fmt: skip


class Denoiser(nn.Module):
    """Says what was added."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.time = nn.Embedding(o.steps, 12)
        self.first, self.norm, self.second = nn.Linear(6, 12), nn.GroupNorm(3, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.norm(self.first(x)))
        if self.o.time:
            h = h + self.o.scale * self.time(t)
        return self.second(h) + x if self.o.rest else self.second(h)


def diffusion(**options: Any) -> tv.Trace:
    """A step of training it, and its average."""
    o = options_of(DIFFUSION, options)
    model = filled(Denoiser(o))
    average = copy.deepcopy(model)
    optimizer = o.opt(model.parameters(), lr=o.lr, weight_decay=o.wd)
    schedules: dict[str, Any] = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1),
        "none": lambda: None,
    }
    schedule = schedules[o.sched]()
    kept = torch.cumprod(1 - torch.linspace(1e-4, o.beta, o.steps), 0)
    torch.manual_seed(o.noise)
    x, noise, t = torch.randn(5, 6), torch.randn(5, 6), torch.randint(0, o.steps, (5,))

    def step() -> Tensor:
        part = kept[t][:, None]
        if o.root:
            noisy = part.sqrt() * x + (1 - part).sqrt() * noise
        else:
            noisy = part * x + (1 - part) * noise
        goal = {"noise": noise, "x": x}[o.target]
        said = model(noisy, t)
        loss = F.mse_loss(said, goal) if o.loss == "mse" else F.l1_loss(said, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.mul_(o.ema).add_(fast, alpha=1 - o.ema)
        return loss.detach()

    def steps() -> Tensor:
        step()
        return step()

    return tv.trace(steps, hold=True)


step_pair("diffusion: beta", diffusion, (), "most of all f32[10] from outside", beta=0.05)
step_pair(
    "diffusion: says the picture",
    diffusion,
    "(root) mse_loss reads a constant f32[5, 6], value 5 *value 9",
    "f32[5, 6] from outside, value 5 instead of f32[5, 6] from outside, value 9",
    target="x",
)
step_pair(
    "diffusion: no time",
    diffusion,
    ("time Embedding(10, 12) removed", "(root) mul, add removed"),
    "time Embedding(10, 12) removed",
    time=False,
)
step_pair("diffusion: no root", diffusion, "(root) *sqrt*removed", "sqrt", root=False)
step_pair("diffusion: l1", diffusion, "(root) mse_loss → *", "mse_loss → ", loss="l1")
step_pair(
    "diffusion: average",
    diffusion,
    ("(root) mul_ other: 0.9 → 0.99", "(root) add_ alpha: 0.09* → 0.01*"),
    "mul_*other: 0.9 → 0.99",
    ema=0.99,
)
step_pair("diffusion: rate", diffusion, "AdamW lr 0.001 → 0.01", "lr 0.001 → 0.01", lr=1e-2)
step_pair(
    "diffusion: decay", diffusion, "AdamW weight_decay 0.01 → 0.011", "weight_decay 0.01 → 0.011", wd=0.011
)
step_pair(
    "diffusion: nadam", diffusion, "optimizer AdamW → NAdam", "optimizer AdamW → NAdam", opt=torch.optim.NAdam
)
step_pair(
    "diffusion: schedule",
    diffusion,
    ("AdamW mul_ other: 0.99999* → 0.999999 (optimizer)", "AdamW addcdiv_ value: *"),
    "mul_ in AdamW (optimizer) is the first to differ*other: 0.99999",
    sched="step",
)
step_pair(
    "diffusion: no schedule",
    diffusion,
    "AdamW initial_lr 0.001 → none",
    "AdamW initial_lr 0.001 → none",
    sched="none",
)
step_pair("diffusion: residual", diffusion, "(root) add added", "add added", rest=True)
step_pair("diffusion: time scaled", diffusion, "(root) mul other: 1.0 → 0.5", "other: 1.0 → 0.5", scale=0.5)

# --- a student and its teacher ---

PUPIL: dict[str, Any] = {
    "heat": 2.0, "part": 0.5, "square": True, "quiet": True, "log": True, "training": False,
    "batchmean": True, "freeze": False, "both": True, "penalty": 0.0, "maximize": False,
    "twice": 1,
}  # fmt: skip


def pupil(**options: Any) -> tv.Trace:
    """A step of learning what a teacher says."""
    o = options_of(PUPIL, options)
    teacher = filled(nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 5)), 3)
    teacher.train(o.training)
    student = filled(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)))
    if o.freeze:
        student[0].requires_grad_(False)
    sgd = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], 0.1, maximize=o.maximize)
    torch.manual_seed(0)
    x, labels = torch.randn(4, 6), torch.randint(0, 5, (4,))

    def step() -> Tensor:
        with torch.set_grad_enabled(not o.quiet):
            goal = teacher(x) / o.heat
        for _ in range(o.twice):
            said = student(x)
            hard = F.cross_entropy(said, labels)
            soft = F.kl_div(
                F.log_softmax(said / o.heat, -1) if o.log else F.softmax(said / o.heat, -1),
                F.softmax(goal, -1),
                reduction="batchmean" if o.batchmean else "mean",
            )
            if o.square:
                soft = soft * 4.0
            loss = o.part * hard + (1 - o.part) * soft if o.both else soft
            if o.penalty:
                loss = loss + o.penalty * sum(p.abs().sum() for p in student.parameters())
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        return loss.detach()

    return tv.trace(step, hold=True)


step_pair("pupil: temperature", pupil, "(root) div other: 2.0 → 4.0", "div*other: 2.0 → 4.0", heat=4.0)
step_pair(
    "pupil: part of labels",
    pupil,
    ("(root) mul other: 0.5 → 0.9", "(root) mul other: 0.5 → 0.0999*"),
    "mul*other: 0.5 → 0.9",
    part=0.9,
)
step_pair("pupil: not scaled back", pupil, "(root) mul removed", "mul removed", square=False)
step_pair(
    "pupil: no logarithm", pupil, "(root) _log_softmax → _softmax", "_log_softmax → _softmax", log=False
)
step_pair(
    "pupil: teacher trains",
    pupil,
    "teacher.1 Dropout(training=False) → Dropout(training=True)",
    "teacher.1 Dropout(training=False) → Dropout(training=True)",
    training=True,
)
step_pair(
    "pupil: mean for batchmean", pupil, "(root) sum, div → mean", "(root) sum, div → mean", batchmean=False
)
step_pair(
    "pupil: no labels", pupil, "(root) mul, mul, add removed", "(root) mul, mul, add removed", both=False
)
step_pair(
    "pupil: frozen", pupil, "student.0 weight, bias frozen", "student.0 weight, bias frozen", freeze=True
)
step_pair(
    "pupil: teacher with gradients",
    pupil,
    ("teacher runs without gradients *", "(root) runs without gradients *"),
    "teacher runs without gradients in A alone (no_grad)",
    quiet=False,
)
step_pair("pupil: penalty", pupil, "(root) abs, sum, add, *added", "(root) abs, sum, add", penalty=1e-3)
step_pair("pupil: upwards", pupil, "SGD maximize False → True", "maximize False → True", maximize=True)

# --- words one by one ---

CACHED: dict[str, Any] = {
    "heads": 2, "groups": 1, "theta": 10000.0, "start": True, "keep": True, "window": None, "value": True, "temp": 1.0,
    "top": None, "eps": 1e-6, "rms": True, "scale": True, "qk": False, "interleaved": False, "shift": 0, "unit": False,
    "logit": 1.0, "tied": False, "lora": None,
}  # fmt: skip


class Root(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int, eps: float, unit: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.unit = nn.Parameter(torch.ones(width)), eps, unit

    def forward(self, x: Tensor) -> Tensor:
        y = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return y * (1 + self.weight) if self.unit else y * self.weight


class Cached(nn.Module):
    """One layer of attention whose positions are turned, with what it has read."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.words = nn.Embedding(15, 8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.norm = Root(8, o.eps, o.unit) if o.rms else nn.LayerNorm(8, eps=o.eps)
        self.head = nn.Linear(8, 15, bias=False)
        if o.tied:
            self.head.weight = self.words.weight

    def turned(self, x: Tensor, first: int) -> Tensor:
        o = self.o
        angles = torch.arange(first, first + x.shape[-2])[:, None] * o.theta ** (-torch.arange(0, 2) / 2)
        sin, cos = angles.sin(), angles.cos()
        a, b = (x[..., ::2], x[..., 1::2]) if o.interleaved else x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, words: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        o, (batch, length) = self.o, words.shape
        h = self.norm(self.words(words))
        q, k, v = (f(h).view(batch, length, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        first = past[0].shape[-2] if past is not None and o.start else 0
        q, k = self.turned(q, first + o.shift), self.turned(k, first)
        if past is not None:
            k = torch.cat([past[0], k], -2)
            v = torch.cat([past[1], v], -2)
        if o.window:
            k, v = k[..., -o.window :, :], v[..., -o.window :, :]
        if o.qk:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, scale=None if o.scale else 1.0)
        y = self.out(y.transpose(1, 2).reshape(batch, length, 8))
        return self.head(y) * o.logit, (k, v)


def cached(**options: Any) -> tv.Trace:
    """Four words read, two written."""
    o = options_of(CACHED, options)
    model = filled(Cached(o))
    torch.manual_seed(0)
    words = torch.randint(0, 15, (2, 4))

    @torch.no_grad()
    def run() -> Tensor:
        scores, past = model(words)
        for _ in range(2):
            chances = scores[:, -1] / o.temp
            if o.top:
                least = chances.topk(o.top).values[:, -1:]
                chances = chances.masked_fill(chances < least, float("-inf"))
            following = chances.softmax(-1).argmax(-1, keepdim=True)
            scores, past = model(following, past if o.keep else None)
        return scores

    return tv.trace(run, hold=True)


step_pair("cache: base", cached, "(root) pow self: 10000.0 → 500.0", "10000.0 → 500.0", theta=500.0)
step_pair(
    "cache: positions from 0 again",
    cached,
    ("(root) arange start: 4 → 0, end: 5 → 1", "(root) arange start: 5 → 0, end: 6 → 1"),
    "(root) arange start: 4 → 0",
    start=False,
)
step_pair(
    "cache: window",
    cached,
    ("(root) slice, slice added", "(root) arange start: 4 → 3*", "(root) arange start: 5 → 3*"),
    "(root) slice, slice added",
    window=3,
)
step_pair("cache: temperature", cached, "(root) div other: 1.0 → 0.7", "div*other: 1.0 → 0.7", temp=0.7)
step_pair("cache: top k", cached, "(root) topk*added", "topk", top=3)
step_pair("cache: eps", cached, "norm*1e-06 → 1e-05", "1e-06 → 1e-05", eps=1e-5)
step_pair("cache: layer norm", cached, "norm Root → LayerNorm*", "norm Root", rms=False)
step_pair("cache: not scaled", cached, "(root) *scale: none → 1.0", "scale: none → 1.0", scale=False)
step_pair("cache: norm of qk", cached, "(root) *added", "linalg_vector_norm", qk=True)
step_pair(
    "cache: every second",
    cached,
    "(root) split → slice, slice",
    "(root) split → slice, slice",
    interleaved=True,
)
step_pair(
    "cache: query off by one",
    cached,
    ("(root) arange start: 0 → 1*", "(root) arange start: 4 → 5*", "(root) arange start: 5 → 6*"),
    "(root) arange start: 0 → 1",
    shift=1,
)
step_pair(
    "cache: one and weight",
    cached,
    "norm Root(unit=False) → Root(unit=True); add added",
    "norm Root(unit=False)",
    unit=True,
)
step_pair("cache: scale of logits", cached, "(root) mul other: 1.0 → 0.5", "other: 1.0 → 0.5", logit=0.5)
step_pair(
    "cache: tied", cached, "head weight tied to words.weight", "head weight tied to words.weight", tied=True
)
step_pair(
    "cache: forgotten",
    cached,
    (
        "(root) arange start: 4 → 0*",
        "(root) cat, cat removed",
        "(root) *is_causal: False → True",
        "(root) arange start: 5 → 0*",
    ),
    "",
    keep=False,
)

# --- experts, neighbours, critics ---

EXPERTS: dict[str, Any] = {
    "top": 2, "normed": True, "noise": False, "aux": 0.01, "number": 3, "order": "softmax", "act": "silu",
    "shared": False, "dim": -1,
}  # fmt: skip


class Experts(nn.Module):
    """The best experts for each row."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.router = nn.Linear(6, o.number, bias=False)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(o.number))
        if o.shared:
            self.shared = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        o = self.o
        scores = self.router(x)
        chances = scores.softmax(o.dim) if o.order == "softmax" else scores.sigmoid()
        best, index = chances.topk(o.top, -1)
        if o.normed:
            best = best / best.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            part = (best * (index == number)).sum(-1, keepdim=True)
            y = y + part * (F.silu(expert(x)) if o.act == "silu" else F.gelu(expert(x)))
        if o.shared:
            y = y + self.shared(x)
        return y, (chances.mean(0) ** 2).sum()


def experts(**options: Any) -> tv.Trace:
    """A run, and backward."""
    o = options_of(EXPERTS, options)
    model = filled(Experts(o))
    torch.manual_seed(0)
    x, goal = torch.randn(5, 6), torch.randn(5, 6)

    def run() -> Tensor:
        y, balance = model(x)
        return F.mse_loss(y, goal) + o.aux * balance

    return tv.trace(run, loss=lambda loss: loss, hold=True)


step_pair("experts: one", experts, "(root) topk k: 2 → 1", "k: 2 → 1", top=1)
step_pair("experts: not normed", experts, "(root) sum, div removed", "sum, div removed", normed=False)
step_pair("experts: balance", experts, "(root) mul other: 0.01 → 0.1", "other: 0.01 → 0.1", aux=0.1)
step_pair("experts: sigmoid", experts, "(root) _softmax → sigmoid", "_softmax → sigmoid", order="sigmoid")
step_pair("experts: gelu", experts, "(root) silu → gelu", "silu → gelu", act="gelu")
step_pair(
    "experts: shared",
    experts,
    ("shared Linear(6, 6) added", "(root) add added"),
    "shared Linear(6, 6) added",
    shared=True,
)
step_pair(
    "experts: one more",
    experts,
    ("router Linear(6, 3) → Linear(6, 4)", "(root) eq, *added", "experts.3 Linear(6, 6) added"),
    "router Linear(6, 3) → Linear(6, 4)",
    number=4,
)
step_pair("experts: softmax over rows", experts, "(root) _softmax dim: -1 → 0", "dim: -1 → 0", dim=0)

NEIGHBOURS: dict[str, Any] = {
    "self": True, "norm": "row", "sum": "sum", "act": "relu", "both": False, "order": "after", "gap": 0.2,
}  # fmt: skip


def neighbours(**options: Any) -> tv.Trace:
    """A graph network, run and backward."""
    o = options_of(NEIGHBOURS, options)
    first, second = filled(nn.Linear(5, 8)), filled(nn.Linear(8, 3), 4)
    torch.manual_seed(0)
    x, source, target = torch.randn(7, 5), torch.randint(0, 7, (20,)), torch.randint(0, 7, (20,))

    def gather(h: Tensor) -> Tensor:
        a, b = (torch.cat([e, torch.arange(7)]) if o.self else e for e in (source, target))
        if o.both:
            a, b = torch.cat([a, b]), torch.cat([b, a])
        y = torch.zeros_like(h)
        if o.sum == "amax":
            return y.scatter_reduce(0, b[:, None].expand(-1, h.shape[1]), h[a], "amax", include_self=False)
        y = y.index_add(0, b, h[a])
        return y / torch.bincount(b, minlength=7).clamp(min=1)[:, None] if o.norm == "row" else y

    def run() -> Tensor:
        h = gather(first(x)) if o.order == "after" else first(gather(x))
        h = F.relu(h) if o.act == "relu" else F.leaky_relu(h, o.gap)
        return gather(second(h)).pow(2).mean()

    return tv.trace(run, loss=lambda loss: loss, hold=True)


step_pair("neighbours: not itself", neighbours, "(root) *cat*removed", "cat", self=False)
step_pair("neighbours: not divided", neighbours, "(root) *div*removed", "div", norm="none")
step_pair("neighbours: greatest", neighbours, "(root) *scatter_reduce*", "scatter_reduce", sum="amax")
step_pair("neighbours: leaky", neighbours, "(root) relu → leaky_relu", "relu → leaky_relu", act="leaky")
step_pair("neighbours: both ways", neighbours, "(root) cat*added", "cat", both=True)

ACTOR: dict[str, Any] = {
    "clip": 0.2, "entropy": 0.01, "value": 0.5, "gamma": 0.99, "normed": True, "detach": True, "min": True,
    "mean": True, "old": True, "grad": 0.5, "accumulate": 1, "divide": True, "opt": "adam", "eps": 1e-5, "beta": 0.999,
}  # fmt: skip


def actor(**options: Any) -> tv.Trace:
    """A step of an actor and its critic."""
    o = options_of(ACTOR, options)
    policy, critic = filled(nn.Linear(4, 3)), filled(nn.Linear(4, 1), 6)
    parameters = [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, 1e-2, eps=o.eps, betas=(0.9, o.beta))
    torch.manual_seed(0)
    state, action, gain = torch.randn(6, 4), torch.randint(0, 3, (6, 1)), torch.randn(6)
    before = torch.randn(6) * 0.1 - 1

    def step() -> Tensor:
        adam.zero_grad()
        for _ in range(o.accumulate):
            chances = policy(state).log_softmax(-1)
            value = critic(state)[:, 0]
            advantage = o.gamma * gain - (value.detach() if o.detach else value)
            if o.normed:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (chances.gather(1, action)[:, 0] - before).exp()
            cut = ratio.clamp(1 - o.clip, 1 + o.clip)
            best = torch.min(ratio * advantage, cut * advantage) if o.min else ratio * advantage
            entropy = -(chances.exp() * chances).sum(-1).mean()
            loss = -best.mean() + o.value * F.mse_loss(value, gain) - o.entropy * entropy
            (loss / 2 if o.accumulate > 1 and o.divide else loss).backward()
        nn.utils.clip_grad_norm_(parameters, o.grad)
        adam.step()
        return loss.detach()

    return tv.trace(step, hold=True)


step_pair(
    "actor: clip", actor, "(root) clamp min: 0.8 → 0.9, max: 1.2 → 1.1", "clamp*min: 0.8 → 0.9", clip=0.1
)
step_pair("actor: entropy", actor, "(root) mul other: 0.01 → 0.1", "other: 0.01 → 0.1", entropy=0.1)
step_pair("actor: value", actor, "(root) mul other: 0.5 → 1.0", "other: 0.5 → 1.0", value=1.0)
step_pair("actor: discount", actor, "(root) mul other: 0.99 → 0.9", "other: 0.99 → 0.9", gamma=0.9)
step_pair("actor: not normalised", actor, "(root) *std*removed", "std", normed=False)
step_pair("actor: value not detached", actor, "(root) detach removed", "detach removed", detach=False)
step_pair("actor: not the least", actor, "(root) *minimum removed", "minimum removed", min=False)
step_pair("actor: clipped at another norm", actor, "*0.5 → 0.1*", "0.5 → 0.1", grad=0.1)
step_pair(
    "actor: accumulated",
    actor,
    ("(root) div, _log_softmax, *added", "policy called 1 → 2 times", "critic called 1 → 2 times"),
    "(root) div, _log_softmax",
    accumulate=2,
)
step_pair("actor: eps", actor, "Adam eps 1e-05 → 1e-08", "eps 1e-05 → 1e-08", eps=1e-8)
step_pair("actor: beta", actor, "Adam betas (0.9, 0.999) → (0.9, 0.95)", "betas", beta=0.95)

# --- a critic of a generator, whose slope is held ---

SLOPE: dict[str, Any] = {"penalty": 10.0, "graph": True, "detach": True, "own": True, "spectral": False, "clamp": None,
                         "sign": -1.0, "set": True}  # fmt: skip


def wasserstein(**options: Any) -> tv.Trace:
    """A step of the critic, then one of the generator."""
    o = options_of(SLOPE, options)
    generator = filled(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5)))
    critic = filled(nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1)), 2)
    if o.spectral:
        nn.utils.parametrizations.spectral_norm(critic[0])
    optimizers = [torch.optim.RMSprop(model.parameters(), 1e-3) for model in (critic, generator)]
    torch.manual_seed(0)
    x, z, part = torch.randn(6, 5), torch.randn(6, 3), torch.rand(6, 1)

    def step() -> Tensor:
        if o.set:
            optimizers[0].zero_grad()
        fake = generator(z).detach() if o.detach else generator(z)
        loss = critic(fake).mean() - critic(x).mean()
        between = (part * x + (1 - part) * fake).detach().requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=o.graph)
        loss = loss + o.penalty * (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        optimizers[0].step()
        if o.clamp:
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-o.clamp, o.clamp)
        optimizers[1].zero_grad()
        (o.sign * critic(generator(z)).mean()).backward()
        optimizers[1].step()
        return loss.detach()

    def steps() -> Tensor:
        step()
        return step()

    return tv.trace(steps, hold=True)


step_pair(
    "wasserstein: penalty", wasserstein, "(root) mul other: 10.0 → 1.0", "other: 10.0 → 1.0", penalty=1.0
)
step_pair(
    "wasserstein: no graph of the slope",
    wasserstein,
    (
        "(root) mul, div, pow, *removed (backward)",
        "sequential_1.0 *removed (backward)",
        "sequential_1.0,2 add removed (backward)",
    ),
    "(root) mul, div, pow",
    graph=False,
)
step_pair("wasserstein: not detached", wasserstein, "(root) detach removed", "detach removed", detach=False)
step_pair("wasserstein: sign", wasserstein, "(root) mul other: -1.0 → 1.0", "other: -1.0 → 1.0", sign=1.0)
step_pair("wasserstein: clamped", wasserstein, "(root) clamp_*added", "clamp_", clamp=0.05)
step_pair(
    "wasserstein: gradients of the generator's step kept",
    wasserstein,
    "sequential_1.0,2 add_ added (backward)",
    "sequential_1.0 add_ added (backward)",
    set=False,
)

# --- two steps of a reader, whose gradients come in parts ---

READER: dict[str, Any] = {
    "detach": False, "half": False, "step_at_once": False, "shared": False, "diagonal": 0, "dim": -1, "scaled": True,
    "divided": True,
}  # fmt: skip


class Wide(nn.Linear):
    """A layer that may go through another dtype."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__(8, 8)
        self.o = o

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.half().float() if self.o.half else y


class Reader(nn.Module):
    """Words, two blocks of attention, words again."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.words = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"inside": nn.Linear(8, 24), "out": nn.Linear(8, 8), "wide": Wide(o)})
            for _ in range(2)
        )
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        o, x = self.o, self.words(tokens)
        for number in (0, 0) if o.shared else (0, 1):
            block = self.blocks[number]
            q, k, v = block["inside"](x).chunk(3, -1)
            scores = q @ k.transpose(-1, -2)
            if o.scaled:
                scores = scores / 3
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(o.diagonal)
            x = x + block["out"](scores.masked_fill(~visible, -1e9).softmax(o.dim) @ v)
            h = block["wide"](x)
            if o.detach:
                h = h.detach()
            x = x + h
        return self.head(x)


def reader(**options: Any) -> tv.Trace:
    """Two steps of training it, each of two parts of the batch."""
    o = options_of(READER, options)
    model = filled(Reader(o))
    adam = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(0)
    tokens = torch.randint(0, 12, (4, 7))

    def steps() -> Tensor:
        for _ in range(2):
            adam.zero_grad()
            for part in tokens.chunk(2):
                loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
                (loss / 2 if o.divided else loss).backward()
                if o.step_at_once:
                    adam.step()
            adam.step()
        return loss.detach()

    return tv.trace(steps, hold=True)


step_pair(
    "reader: mask off by one", reader, "(root) tril diagonal: 0 → 1", "tril*diagonal: 0 → 1", diagonal=1
)
step_pair("reader: softmax of columns", reader, "(root) _softmax dim: -1 → -2", "dim: -1 → -2", dim=-2)
step_pair("reader: not scaled", reader, "(root) div removed", "div removed", scaled=False)
step_pair("reader: detached", reader, ("(root) detach added", "*", "*"), "(root) detach added", detach=True)
step_pair(
    "reader: cast", reader, "blocks.*.wide _to_copy, _to_copy added", "what changed: blocks.0.wide", half=True
)
step_pair(
    "reader: a step for each part",
    reader,
    ("AdamW steps 2 → 6 times", "(root) called in another order", "*", "*", "*", "*", "*"),
    "AdamW steps 2 → 6 times; the runs part at",
    step_at_once=True,
)
step_pair(
    "reader: shared",
    reader,
    tuple(f"blocks.1.{name} is blocks.0.{name} in B, shared" for name in ("inside", "out", "wide")),
    "blocks.1.inside is blocks.0.inside in B, shared",
    shared=True,
)
step_pair("reader: parts not divided", reader, "(root) div removed", "div removed", divided=False)

__all__ = ["PAIRS"]
