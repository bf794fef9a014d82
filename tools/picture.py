"""Draw the pictures of the documentation: the table and the page of one real trace, the graph of another.

python -m tools.picture docs    # the page as Chromium shows it
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import torch_vis as tv
from tests.kit.browser import browser
from tests.kit.first_screen import resize

CHARACTER, LINE, MARGIN = 7.23, 16, 18
STYLE = "font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre"


def svg(text: str) -> str:
    """A text as lines of monospaced SVG on a dark ground; each line is held to its width whatever the font."""
    lines = text.splitlines()
    width = max(map(len, lines)) * CHARACTER + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines):
        if line.strip():
            body = line.lstrip(" ")
            x = MARGIN + (len(line) - len(body)) * CHARACTER
            y = MARGIN + LINE * (number + 0.75)
            colour = "#7ee787" if line.startswith("check:") else "#e6edf3"
            rows.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" textLength="{len(body) * CHARACTER:.1f}" '
                f'xml:space="preserve">{escape(body)}</text>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" style="{STYLE}">'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{"".join(rows)}</svg>\n'
    )


SIZE = (1440, 900)
WIDE = 960  # pixels of the animation
FRAME_MS = 90
SEARCH = "layer.3.attention.self.key"


@contextlib.contextmanager
def opened(trace: tv.Trace) -> Iterator[Any]:
    """A browser that shows the page of a trace as it opens."""
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        trace.save(Path(folder, "page.html"), source=False)
        resize(driver, SIZE)
        driver.get(Path(folder, "page.html").as_uri())
        while not driver.execute_script("return window.torchVis?.isReady"):
            time.sleep(0.05)
        driver.execute_script("torchVis.theme('light')")
        time.sleep(1.0)  # until what moves has come to rest
        yield driver


def page(trace: tv.Trace, path: Path) -> None:
    """The page of a trace as it opens."""
    with opened(trace) as driver:
        driver.save_screenshot(str(path))


def animation(trace: tv.Trace, path: Path) -> None:
    """What a person does first: open a box, search for a module, go to it, colour by time."""
    from PIL import Image
    from selenium.webdriver.common.action_chains import ActionChains

    frames: list[Image.Image] = []
    lasting: list[int] = []

    def look(hold: int = FRAME_MS) -> None:
        picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        frames.append(picture.resize((WIDE, WIDE * SIZE[1] // SIZE[0]), Image.Resampling.LANCZOS))
        lasting.append(hold)

    def press(*keys: str) -> None:
        ActionChains(driver).send_keys(*keys).perform()

    with opened(trace) as driver:
        look(1400)
        driver.execute_script("void torchVis.open('attention')")
        for _ in range(6):
            look()
        time.sleep(0.5)
        look(1500)
        press("/")
        look(300)
        for letter in SEARCH:
            press(letter)
            look(60)
        time.sleep(0.3)
        look(1100)
        press("\ue007")
        for _ in range(6):
            look()
        time.sleep(0.6)
        look(1600)
        driver.execute_script("torchVis.heat('time_ns')")
        time.sleep(0.3)
        look(2200)
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=lasting, loop=0, quality=72, method=6
    )


def main() -> None:
    """Trace BERT-base and a Llama in training mode; draw what ``print`` and ``check`` say, and the graph."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the README and the documentation.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    model, ids = BertModel(BertConfig()).train(), torch.randint(0, 30522, (1, 64))
    tv.trace(model, ids, backward=True)  # what is loaded at first use is not what it costs
    model.zero_grad()
    bert = tv.trace(model, ids, backward=True)
    page(bert, folder / "page.png")
    animation(bert, folder / "page.webp")
    (folder / "table.svg").write_text(svg(f"{bert}\n\ncheck: {bert.check()}"), encoding="utf-8")
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 16, "vocab_size": 32000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    llama = tv.trace(
        LlamaForCausalLM(LlamaConfig(**sizes, **heads)), torch.randint(0, 32000, (1, 128)), hold=False
    )
    picture = str(llama.figure("svg")).replace(f"{Path(__file__).resolve().parents[1]}/", "")
    (folder / "llama.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
