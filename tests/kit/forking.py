"""Commands run each in a process of its own that has torch already: a server that forks.

Importing torch takes longer than most commands. This process imports it once, and other libraries that commands need;
each line that it reads is a command, run in a fork of it whose exit status, stdout and stderr are the answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NamedTuple

AHEAD = (
    "torch._dynamo",
    "torch.export",
    "torch_vis.api",
    "torch_vis.capture.session",
    "torch_vis.ops.cost",
    "torch_vis.replay.check",
    "torch_vis.views.text.module_tree",
    "timm",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
ROOT = Path(__file__).resolve().parent.parent.parent


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said on stderr."""
        return self.err.splitlines()


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}


class Server:
    """The other side: ask it to run commands in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, *words: str) -> Done:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        return Done(*json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def cold(folder: Path, *words: str) -> Done:
    """A command in a new interpreter, as the shell runs it."""
    command = [sys.executable, "-m", "torch_vis", *words]
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def serve() -> None:
    """Read commands until there are no more."""
    import torch

    from tests.zoo_models.torchvision_ops import declare_torchvision_ops

    declare_torchvision_ops()
    torch.set_num_threads(1)
    for name in AHEAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                _become(json.loads(line), out.fileno(), err.fileno())
            _, status = os.waitpid(child, 0)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
            code = os.waitstatus_to_exitcode(status)
        print(json.dumps([code, *texts]), flush=True)


def _become(words: list[str], out: int, err: int) -> Any:
    """Be the program, in a fork."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv[:] = ["torch-vis", *words]
    code: Any = 70
    try:
        from torch_vis.cli.main import main

        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            traceback.print_exc()
        os._exit(code or 0)


if __name__ == "__main__":
    serve()
