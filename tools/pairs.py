"""How many pairs of runs with one known change are named right: by ``compare(a, b).lines``, and by ``differences()``.

python -m tools.pairs                    # all of them; some minutes
python -m tools.pairs --only "timm: heads" stride
"""

from __future__ import annotations

import argparse
import sys
import warnings

from tests.kit.pairs import wrongs
from tests.kit.task_pairs import PAIRS


def main() -> int:
    """Print what is named wrong, and both figures; 1 if there is any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="these pairs alone")
    names = parser.parse_args().only or list(PAIRS)
    warnings.simplefilter("ignore")
    structural = numerical = 0
    for name in names:
        found = list(wrongs(PAIRS[name]))
        structural += any(not text.startswith("numbers") for text in found)
        numerical += any(text.startswith("numbers") for text in found)
        for text in found:
            print(f"{name}: {text}", flush=True)
    asked = sum(bool(PAIRS[name].sentence) for name in names)
    print(f"named right: {len(names) - structural} of {len(names)} by structure")
    print(f"named right: {asked - numerical} of {asked} by numbers")
    return int(bool(structural or numerical))


if __name__ == "__main__":
    sys.exit(main())
