"""A model in memory as a checkpoint on disk: the audit reads files, so it is given one for as long as it takes.

A safetensors file is a length (u64), a JSON header of that length, and the tensors' bytes without gaps. Tensors are
copied one by one, and only those that can say something about scores."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import struct
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Path = Union[str, "os.PathLike[str]"]
Source = Union[Path, Mapping[str, Any], "torch.nn.Module"]

# What safetensors calls the numbers that weights are made of, and their size in bytes.
_FLOATS = {"float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}

# Parts of names that no family of the audit reads, and that make up most of a model.
_NEVER_READ = frozenset(
    """
    embed_out embed_positions patch_embeddings lm_head cls pooler classifier v_proj o_proj out_proj c_proj value dense
    mlp experts intermediate gate_proj up_proj down_proj gate_up_proj fc1 fc2 DenseReluDense""".split()
)

_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def is_read(name: str) -> bool:
    """Whether a built-in family of the audit may read the tensor of this name."""
    return _NEVER_READ.isdisjoint(name.split("."))


def is_path(source: object) -> bool:
    return isinstance(source, (str, os.PathLike))


def is_module(source: object) -> bool:
    torch = sys.modules.get("torch")  # without torch there are no modules
    return torch is not None and isinstance(source, torch.nn.Module)


def config_text(config: object) -> str:
    """What config.json would say."""
    if hasattr(config, "to_json_string"):  # transformers
        return str(config.to_json_string())
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    if not isinstance(config, Mapping):
        raise TypeError(f"config: {type(config).__name__}, but a dict or a configuration of transformers is wanted")
    try:
        return json.dumps(
            dict(config), allow_nan=False, default=lambda value: value.item() if hasattr(value, "item") else str(value)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"config: cannot be written as JSON: {error}") from None


def config_of(source: Source) -> str | None:
    """The configuration that a model carries, or that lies beside a file; None where there is none."""
    if is_path(source):
        path = pathlib.Path(source)  # type: ignore[arg-type]
        beside = (path if path.is_dir() else path.parent) / "config.json"
        return beside.read_text(encoding="utf-8") if beside.is_file() else None
    config = getattr(_unwrapped(source), "config", None) if is_module(source) else None
    try:
        return None if config is None else config_text(config)
    except TypeError:  # `config` may be anything
        return None


@contextlib.contextmanager
def on_disk(argument: str, source: Source, config: str | None, everything: bool) -> Iterator[pathlib.Path]:
    """A directory with `source` in it, gone afterwards. `argument` is what its messages call it; `everything` is for
    families of the caller's own, which may read any tensor."""
    name = type(_unwrapped(source)).__name__ if is_module(source) else "state_dict"
    tensors = _tensors_of(argument, source, everything)
    with tempfile.TemporaryDirectory(prefix="rootdk-") as top:
        folder = pathlib.Path(top) / name  # the audit calls a model after its directory
        try:
            folder.mkdir()
            if config is not None:
                (folder / "config.json").write_text(config, encoding="utf-8")
            with open(folder / "model.safetensors", "wb") as file:
                _write(argument, tensors, file)
        except OSError as error:
            words = f"{argument}: cannot be written to {tempfile.gettempdir()} (TMPDIR names another directory)"
            raise OSError(error.errno, f"{words}: {error.strerror}") from None
        try:
            yield folder
        except ValueError as error:
            words = str(error)
            for path in (folder / "model.safetensors", folder):
                words = words.replace(str(path), argument)
            raise ValueError(words.replace("config.json", "config")) from None


def _unwrapped(source: Any) -> Any:
    """The model inside torch.compile's and data parallelism's."""
    while True:
        inner = getattr(source, "_orig_mod", None)
        if inner is None and type(source).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = source.module
        if inner is None:
            return source
        source = inner


def _tensors_of(argument: str, source: Any, everything: bool) -> Mapping[str, Any]:
    """By the names that a checkpoint has."""
    whole: Mapping[str, Any] = _unwrapped(source).state_dict() if is_module(source) else source
    for name in whole:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: {name!r} is no name of a tensor, but {type(name).__name__}")
    names = [name for name in whole if (everything or is_read(name)) and not name.endswith("_extra_state")]
    kept = {name: whole[name] for name in names if _is_weight(argument, name, whole[name])}
    if is_module(source):
        kept = _as_saved(_unwrapped(source), kept)
    for wrapper in _WRAPPERS:
        while kept and all(name.startswith(wrapper) for name in kept):
            kept = {name[len(wrapper) :]: tensor for name, tensor in kept.items()}
    return kept


def _as_saved(model: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Some models of transformers call their tensors otherwise in files, and files are what families describe."""
    if "transformers" not in sys.modules or not hasattr(model, "save_pretrained"):
        return tensors
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # versions whose names are the same in both
        return tensors
    return dict(revert_weight_conversion(model, tensors))


def _is_weight(argument: str, name: str, tensor: Any) -> bool:
    """Whether it is one the audit could read. What it cannot, though it is a weight, is refused."""
    here = f'{argument}: "{name}"'
    if isinstance(tensor, Mapping):
        raise TypeError(f"{here} is a {type(tensor).__name__}, but a tensor is wanted; if tensors are in it, pass that")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        _check_torch(here, tensor)
    elif not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
        raise TypeError(f"{here} is a {type(tensor).__name__}, but a tensor is wanted")
    dtype = _dtype(tensor)
    if dtype in _FLOATS:
        return True
    last = name.rsplit(".", 1)[-1]
    if last in ("weight", "gamma", "beta") or last == "bias" and len(tensor.shape) == 1:
        raise ValueError(
            f"{here} has {dtype} numbers, but float64, float32, float16 or bfloat16 are wanted: audit the "
            "model before it is quantised"
        )
    return False  # a buffer: positions, masks, scales


def _check_torch(here: str, tensor: Any) -> None:
    torch = sys.modules["torch"]
    if hasattr(tensor, "full_tensor"):
        raise ValueError(
            f"{here} is a {type(tensor).__name__}, which may be a part of the tensor only: pass the full "
            "state_dict (get_model_state_dict of torch.distributed.checkpoint, with full_state_dict=True)"
        )
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"{here} has no shape yet: run the model once, or load its weights")
    if tensor.device.type == "meta":
        raise ValueError(f"{here} is on the meta device and has no numbers: load the weights first")
    if tensor.is_quantized:
        raise ValueError(f"{here} is quantised ({_dtype(tensor)}): audit the model before it is")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise ValueError(f"{here} is {'nested' if tensor.is_nested else 'sparse'}, but a dense tensor is wanted")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ValueError(f"{here} is a {type(tensor).__name__}, whose numbers cannot be copied: pass plain tensors")


def _dtype(tensor: Any) -> str:
    return str(getattr(tensor.dtype, "name", tensor.dtype)).rsplit(".", 1)[-1]


def _write(argument: str, tensors: Mapping[str, Any], file: Any) -> None:
    header: dict[str, dict[str, Any]] = {}
    at = 0
    for name, tensor in tensors.items():
        dtype, size = _FLOATS[_dtype(tensor)]
        shape = [int(n) for n in tensor.shape]
        end = at + int(np.prod(shape, dtype=np.int64)) * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    file.write(struct.pack("<Q", len(text)) + text)
    for name, tensor in tensors.items():
        numbers = _bytes(tensor)
        begin, end = header[name]["data_offsets"]
        if numbers.size != end - begin:
            raise ValueError(f'{argument}: "{name}" has {numbers.size} bytes, but its shape says {end - begin}')
        file.write(numbers.data)


def _bytes(tensor: Any) -> npt.NDArray[np.uint8]:
    """Its numbers in order, little-endian: a copy where they lie otherwise or on another device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        plain = tensor.detach().to("cpu").resolve_neg().contiguous().reshape(-1)
        out: npt.NDArray[np.uint8] = plain.view(torch.uint8).numpy()
        return out
    array = np.ascontiguousarray(tensor).reshape(-1)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.view(np.uint8)
