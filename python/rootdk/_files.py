"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import pathlib
from typing import Union


def write_whole(path: Union[str, os.PathLike[str]], text: str) -> pathlib.Path:
    target = pathlib.Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
