"""Files that appear whole or not at all. A link stays a link; a pipe or a device is written to."""

from __future__ import annotations

import os
import pathlib
from typing import Union


def write_whole(path: Union[str, os.PathLike[str]], text: str) -> pathlib.Path:
    given = pathlib.Path(path)
    target = pathlib.Path(os.path.realpath(given))
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_text(text, encoding="utf-8")
        return given
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return given
