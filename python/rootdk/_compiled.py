"""The library with the operators' kernels in C++, loaded into torch if it is there. It is built where torch's headers
are, and serves every torch from 2.10 on; without it the kernels are Python's."""

from __future__ import annotations

import pathlib
import warnings

import torch

_LIBRARY = pathlib.Path(__file__).parent / "lib" / "librootdk_torch.so"
_OLDEST = (2, 10)


def _load() -> bool:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _OLDEST or not _LIBRARY.exists():
        return False
    try:
        torch.ops.load_library(_LIBRARY)
    except OSError as error:
        warnings.warn(
            f"rootdk.torch: its compiled operators cannot be loaded, and calls take longer: {error}", stacklevel=2
        )
        return False
    return True


has_compiled_operator = _load()
