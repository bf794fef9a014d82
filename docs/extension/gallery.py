"""Makes the pages of the gallery: real models of every kind, traced when the site is built, each one file to open."""

from __future__ import annotations

import html
import linecache
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "gallery_pages"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A page as it opens in a window of this size, drawn at half of it, in the colours of each theme of the site.
WINDOW = ("--window-size=1280,800", "--force-device-scale-factor=0.5", "--hide-scrollbars")
THEMES = {"light": (), "dark": ("--force-dark-mode",)}


class Exhibit(NamedTuple):
    """A page of the gallery: its title, what is worth a look there, and what makes it."""

    title: str
    look: str
    make: Callable[[], Any]


def resnet() -> Any:
    import timm
    import torch

    import torch_vis as tv

    return tv.trace(timm.create_model("resnet50"), torch.randn(2, 3, 224, 224), backward=True)


def bert() -> Any:
    import torch
    import transformers

    import torch_vis as tv

    return tv.trace(
        transformers.BertModel(transformers.BertConfig()), torch.randint(0, 30000, (1, 64)), backward=True
    )


def llama() -> Any:
    import torch
    import transformers

    import torch_vis as tv

    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2000,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(2, 2000, (1, 12))
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        return tv.trace(model.generate, ids, kwargs=options)


def mixtral() -> Any:
    import torch
    import transformers

    import torch_vis as tv

    config = transformers.MixtralConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_local_experts=4,
        vocab_size=1000,
    )
    ids = torch.randint(0, 1000, (2, 16))
    return tv.trace(
        transformers.MixtralForCausalLM(config), ids, kwargs={"labels": ids}, loss=lambda output: output.loss
    )


def unet() -> Any:
    import torch
    from torch import nn

    import torch_vis as tv

    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, sizes: tuple[int, ...] = (16, 32, 64, 128)) -> None:
            super().__init__()
            self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *sizes), sizes))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
            self.merge = nn.ModuleList(block(2 * a, a) for a in sizes[:-1])
            self.head = nn.Conv2d(sizes[0], 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skips = []
            for down in self.down:
                x = down(x)
                skips.append(x)
                x = nn.functional.max_pool2d(x, 2) if len(skips) < len(self.down) else x
            for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(skips[:-1])):
                x = merge(torch.cat([up(x), skip], 1))
            return self.head(x)

    return tv.trace(UNet(), torch.randn(2, 3, 64, 64), backward=True)


def gan() -> Any:
    import torch
    from torch import nn

    import torch_vis as tv

    G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh())
    D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    first, second = torch.optim.Adam(D.parameters()), torch.optim.Adam(G.parameters())
    loss = nn.BCEWithLogitsLoss()

    def step(real: torch.Tensor, noise: torch.Tensor) -> None:
        fake = G(noise)
        first.zero_grad()
        (loss(D(real), torch.ones(8, 1)) + loss(D(fake.detach()), torch.zeros(8, 1))).backward()
        first.step()
        second.zero_grad()
        loss(D(fake), torch.ones(8, 1)).backward()
        second.step()

    return tv.trace(step, torch.randn(8, 32), torch.randn(8, 16))


def change() -> Any:
    import timm
    import torch

    import torch_vis as tv

    x = torch.randn(1, 3, 64, 64)
    return tv.compare(tv.trace(timm.create_model("resnet18"), x), tv.trace(timm.create_model("resnet34"), x))


def ranks() -> Any:
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import torch_vis as tv

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    def make(mesh: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        model = nn.Sequential(*(Block(1024) for _ in range(4)))
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    return tv.simulate(make, torch.ones(8, 1024), mesh={"dp": 128, "tp": 8}, hardware="H100 SXM")[0]


EXHIBITS = {
    "resnet50": Exhibit(
        "ResNet-50, forward and backward", "repeated blocks folded, both passes side by side", resnet
    ),
    "bert": Exhibit(
        "BERT-base, forward and backward", "twelve layers as one, with stepping; the heat map by time", bert
    ),
    "llama_generate": Exhibit(
        "Llama, generating", "prefill and decode, the cache growing in the memory line", llama
    ),
    "mixtral": Exhibit("Mixtral, a training step's loss", "routing and experts", mixtral),
    "unet": Exhibit("A U-Net", "drawn as a U, skips across", unet),
    "gan": Exhibit(
        "A GAN, one step with two optimizers", "two models, two backward passes, two optimizers", gan
    ),
    "resnet18_34": Exhibit(
        "ResNet-18 beside ResNet-34", "what was added, removed and changed, as one graph", change
    ),
    "thousand_ranks": Exhibit(
        "One of 1,024 ranks: FSDP × tensor parallel, by shapes",
        "collectives by mesh axis, what they wait for, times predicted for an H100",
        ranks,
    ),
}


def write(app: Any, config: Any = None) -> None:
    """Trace every exhibit whose page is not there yet; `make docs` begins without any.

    Where cells are not run either, as when only the site's own make-up is tested, the pages are empty.
    """
    folder = Path(app.srcdir) / FOLDER / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for name, exhibit in EXHIBITS.items():
        path = folder / f"{name}.html"
        if app.config.nb_execution_mode == "off":
            path.touch()
        elif not path.exists():
            save(exhibit.make(), path)
            draw(path)


def save(run: Any, path: Path) -> None:
    """Write a page without the folders of this machine, but with the lines of the programs, which are everybody's."""
    from torch_vis.graph.run import without_source

    for trace in (run.a, run.b) if hasattr(run, "alignment") else (run,):
        for here, sent in zip(trace.graph.sites, without_source(trace).graph.sites):
            # where a page looks first for the lines of a file
            linecache.cache[sent.file] = (0, None, linecache.getlines(here.file), sent.file)
    run.save(path, source=False)


def draw(page: Path) -> None:
    """A small picture of a page for each theme; none where there is no browser, or where it cannot draw."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    for theme, options in THEMES.items() if browser else ():
        with tempfile.TemporaryDirectory() as profile:
            command = [str(browser), "--headless=new", "--no-sandbox", "--disable-gpu", *WINDOW, *options]
            command += [f"--user-data-dir={profile}", "--disable-dev-shm-usage", "--virtual-time-budget=5000"]
            command += [f"--screenshot={thumbnail(page, theme)}", page.as_uri()]
            try:
                subprocess.run(command, capture_output=True, timeout=120, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return


def thumbnail(page: Path, theme: str) -> Path:
    return page.with_name(f"{page.stem}-{theme}.png")


def fill(app: Any, docname: str, source: list[str]) -> None:
    """The exhibits, each with its picture where it has one, in the page that asks for them."""
    if "@EXHIBITS@" in source[0]:
        folder = Path(app.srcdir) / FOLDER / "gallery"
        cards = [card(folder / f"{name}.html", exhibit) for name, exhibit in EXHIBITS.items()]
        source[0] = source[0].replace("@EXHIBITS@", "\n".join(['<div class="gallery">', *cards, "</div>"]))


def card(page: Path, exhibit: Exhibit) -> str:
    """What leads to a page: its picture, its title and what to look at, in one line of HTML."""
    pictures = "".join(
        f'<img class="only-{theme}" src="gallery/{picture.name}" alt="" width="640" height="400" loading="lazy">'
        for theme in THEMES
        if (picture := thumbnail(page, theme)).exists()
    )
    title, look = html.escape(exhibit.title), html.escape(exhibit.look)
    return f'<a href="gallery/{page.name}">{pictures}<b>{title}</b><span>{look}</span></a>'


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
