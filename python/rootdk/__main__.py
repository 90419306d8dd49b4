"""`python -m rootdk` is the command `rootdk`."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    command = pathlib.Path(__file__).parent / "bin" / "rootdk"
    if not command.exists():
        sys.exit(
            "rootdk: this package was built without the command "
            "(it needs CLI11, Eigen and nlohmann-json when it is built)"
        )
    sys.stdout.flush()
    os.execv(command, ["rootdk", *sys.argv[1:]])


if __name__ == "__main__":
    main()
