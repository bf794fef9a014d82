"""What pyproject.toml cannot say: the description of the package is the README without what only a checkout has.

A package index shows the description far from the repository, where its links and pictures would lead nowhere.
"""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+?)(?:\.md)?\)")


def description(readme: str) -> str:
    """The README: pictures and the words that announce them left out, links to files as the names of their pages."""
    paragraphs = readme.split("\n\n")
    is_picture = [text.startswith("![") for text in paragraphs] + [False]
    shown = [
        text
        for number, text in enumerate(paragraphs)
        if not is_picture[number] and not (is_picture[number + 1] and text.endswith(":"))
    ]
    return LINK.sub(lambda link: f"`{link[2]}`" if link[1] == "page" else link[1], "\n\n".join(shown))


if __name__ == "__main__":
    setup(
        long_description=description(Path("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )
