"""Run one function in this process, whose environment may have nothing of ours but this folder.

Usage: python -m benchmarks.child FILE: the request is read from standard input, the numbers are written to the file, both JSON.
"""

import importlib
import json
import logging
import sys
from pathlib import Path


def main(answer: str) -> None:
    """Call the function that the request names."""
    # What a program in production would do: warnings are made into records, and here written nowhere.
    logging.basicConfig(handlers=[logging.NullHandler()], level=logging.WARNING)
    request = json.load(sys.stdin)
    module, _, name = request["function"].partition(":")
    numbers = getattr(importlib.import_module(module), name)(request["url"], **request["options"])
    Path(answer).write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(sys.argv[1])
