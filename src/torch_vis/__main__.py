"""``python -m torch_vis`` is the program ``torch-vis``."""

from __future__ import annotations

import sys

from torch_vis.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
