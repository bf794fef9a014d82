"""Write viewer/src/data/schema.gen.ts: what the page has to know of a graph's columns, as Python defines it.

    .venv/bin/python tools/viewer_schema.py

A test holds that the file is current.
"""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "viewer" / "src" / "data" / "schema.gen.ts"
sys.path.insert(0, str(ROOT / "src"))


from torch_vis.graph.lifetimes import USE_COLORS  # noqa: E402
from torch_vis.graph.metrics import METRIC_INFO, MetricInfo  # noqa: E402
from torch_vis.graph.schema import COLUMNS, SHORT_DTYPE, Flag, Kind, Phase, Role  # noqa: E402

HEAD = """\
/** What a graph consists of. Written by tools/viewer_schema.py from Python's graph/schema.py and graph/metrics.py. */
"""
METRIC = """\
export interface MetricInfo {
  /** Its name in words. */
  label: string;
  /** Without one, it is a plain number. */
  unit?: "ns" | "B" | "FLOP" | "count" | "share";
  /** That the figures of several operations are not added up. */
  isSummed?: false;
  /** That boxes are not coloured by the sum of it. */
  isHeat?: false;
  /** What it is called there, if not by its label. */
  heatLabel?: string;
  /** That it is told only of operations that have some. */
  isRare?: true;
  /** In a comparison, the metric of which this is B − A. */
  differenceOf?: string;
}
"""


def schema() -> str:
    """The text of the file."""
    parts = [HEAD]
    for enum, name in ((Phase, "Phase"), (Role, "Role"), (Kind, "Kind"), (Flag, "Flag")):
        parts.append(_enum(enum, name))
    names = "".join(f'\n  | "{column}"' for column in COLUMNS)
    parts.append(f"/** The columns of a graph, by name. */\nexport type ColumnName ={names};\n")
    short = "".join(f'  {dtype}: "{text}",\n' for dtype, text in SHORT_DTYPE.items())
    parts.append(
        f"/** Short names of element types. */\nexport const SHORT_DTYPE: Record<string, string> = {{\n{short}}};\n"
    )
    colors = "".join(f'  "{color}", // {use.words}\n' for use, color in USE_COLORS.items())
    parts.append(f"/** Of memory, by use. */\nexport const USE_COLORS = [\n{colors}];\n")
    parts.append(METRIC)
    rows = "".join(f"  {name}: {_metric(info)},\n" for name, info in METRIC_INFO.items())
    parts.append(f"export const METRIC_INFO: Partial<Record<string, MetricInfo>> = {{\n{rows}}};\n")
    return "\n".join(parts)


def _enum(enum: type[IntEnum], name: str) -> str:
    members = "".join(f"  {member.name}: {member.value},\n" for member in enum)
    text = f"export const {name} = {{\n{members}}} as const;\n"
    words = [_quoted(member.name.lower().replace("_", " ")) for member in enum]
    if enum is Flag:
        rows = "".join(f"  [{flag.value}, {word}],\n" for flag, word in zip(enum, words, strict=True))
        return f"{text}export const FLAGS: [bit: number, name: string][] = [\n{rows}];\n"
    line = f"export const {name.upper()}S = [{', '.join(words)}];"
    # As prettier has it: what is too long for a line stands one below the other.
    if len(line) > 120:
        line = f"export const {name.upper()}S = [\n" + "".join(f"  {word},\n" for word in words) + "];"
    return f"{text}{line}\n"


def _metric(info: MetricInfo) -> str:
    """What is not as it is for most: the page carries it."""
    facts = []
    for name, value in info._asdict().items():
        if name == "label" or value != MetricInfo._field_defaults[name]:
            first, *rest = name.split("_")
            facts.append(f"{first}{''.join(part.title() for part in rest)}: {_quoted(value)}")
    return f"{{ {', '.join(facts)} }}"


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    TARGET.write_text(schema(), encoding="utf-8")
