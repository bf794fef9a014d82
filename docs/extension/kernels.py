"""Gives each kernel that runs a guide sockets of its own: two that find the same free port would end the build."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import jupyter_client
from traitlets import Unicode


class OwnSockets(jupyter_client.AsyncKernelManager):
    """A kernel that is reached through files of its own instead of ports."""

    transport = Unicode("ipc")

    def _ip_default(self) -> str:
        return os.path.join(tempfile.mkdtemp(dir=SOCKETS.name), "socket")


SOCKETS = tempfile.TemporaryDirectory(prefix="kernels")


def setup(app: Any) -> dict[str, Any]:
    # where nbclient looks for it when it starts a kernel; Windows has no such sockets
    if os.name == "posix":
        jupyter_client.AsyncKernelManager = OwnSockets  # type: ignore[misc]
    return {"parallel_read_safe": True}
