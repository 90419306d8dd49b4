"""FlashAttention 2's package, computed by rootdk: `sys.modules["flash_attn"] = rootdk.flash_attn`, or `install()`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from rootdk.flash_attn import bert_padding as bert_padding
from rootdk.flash_attn import flash_attn_interface as flash_attn_interface
from rootdk.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

#: FlashAttention's version whose functions these are, by rootdk
__version__ = "2.8.4+rootdk"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
]


def install() -> None:
    """Afterwards `import flash_attn` is this package, for transformers' `flash_attention_2` as well.

    transformers goes by the metadata of installed distributions, which it reads once, when it is imported; it is told
    in its own table that the package `flash_attn` has what the distribution `flash-attn` has.
    """
    there = sys.modules.get("flash_attn")
    mine = sys.modules["rootdk.flash_attn"]
    if there is not mine:
        if there is not None or importlib.util.find_spec("flash_attn") is not None:
            raise ImportError("flash_attn: FlashAttention itself is here, but install() is for where it is not")
        for name in ("", ".bert_padding", ".flash_attn_interface"):
            sys.modules[f"flash_attn{name}"] = sys.modules[f"rootdk.flash_attn{name}"]
    if importlib.util.find_spec("transformers") is not None:
        _tell_transformers()


def _tell_transformers() -> None:
    known: Any = importlib.import_module("transformers.utils.import_utils")
    if "flash-attn" not in known.PACKAGE_DISTRIBUTION_MAPPING.setdefault("flash_attn", []):
        known.PACKAGE_DISTRIBUTION_MAPPING["flash_attn"].append("flash-attn")
    for name in ("is_flash_attn_2_available", "is_flash_attn_greater_or_equal"):
        getattr(known, name).cache_clear()
