"""How guides are run: each kernel has sockets of its own, and what it prints shows no folder of this machine.

Two kernels that find the same free port would end the build.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import jupyter_client
from traitlets import Unicode

import torch_vis


class OwnSockets(jupyter_client.AsyncKernelManager):
    """A kernel that is reached through files of its own instead of ports."""

    transport = Unicode("ipc")

    def _ip_default(self) -> str:
        return os.path.join(tempfile.mkdtemp(dir=SOCKETS.name), "socket")


SOCKETS = tempfile.TemporaryDirectory(prefix="kernels")


def folders(app: Any) -> re.Pattern[str]:
    """Finds the folders of this machine that a guide may print: of packages, the repository, temporary files."""
    packages = {
        *map(sysconfig.get_path, ("purelib", "platlib", "stdlib")),
        str(Path(torch_vis.__file__).parents[1]),
    }
    others = {
        str(Path(app.srcdir).parent),
        sys.prefix,
        tempfile.gettempdir(),
        os.path.realpath(tempfile.gettempdir()),
    }
    installed, other = ("|".join(map(re.escape, names)) for names in (packages, others))
    return re.compile(rf"(?<![\w.])(?:(?:{installed})/|(?:{other})/(?:[^\s\"'<>:;,()/]+/)*)")


def without_folders(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Files in what is printed keep their names, those of installed packages their place in there."""
    if "body" in context:
        context["body"] = folders(app).sub("…/", context["body"])


def setup(app: Any) -> dict[str, Any]:
    app.connect("html-page-context", without_folders)
    # where nbclient looks for it when it starts a kernel; Windows has no such sockets
    if os.name == "posix":
        jupyter_client.AsyncKernelManager = OwnSockets  # type: ignore[misc]
    return {"parallel_read_safe": True}
