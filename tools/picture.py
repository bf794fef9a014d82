"""Draw the pictures of the documentation: the table and the page of one real trace, the graph of another.

python -m tools.picture docs    # the page as Chromium shows it
"""

from __future__ import annotations

import argparse
import tempfile
import time
from html import escape
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import torch_vis as tv
from tests.kit.browser import browser

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


VIEW = """
torchVis.tab("modules"); torchVis.dock("memory"); torchVis.heat("time_ns"); torchVis.fit();
"""


def page(trace: tv.Trace, path: Path) -> None:
    """The page of a trace as it opens, coloured by time, with the table of modules and the memory line."""
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        trace.save(Path(folder, "page.html"))
        driver.set_window_size(1500, 940)
        driver.get(Path(folder, "page.html").as_uri())
        while not driver.execute_script("return window.torchVis?.isReady"):
            time.sleep(0.05)
        driver.execute_script(VIEW)
        time.sleep(1.0)  # until what moves has come to rest
        driver.save_screenshot(str(path))


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
