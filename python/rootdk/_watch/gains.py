"""What a normalisation of queries or keys multiplies by. Some multiply by their weight, some by 1 + weight, some have
none, and names do not tell: the module is tried on random numbers."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

_GAINS, _SHIFTS = ("weight", "scale", "gamma", "g"), ("bias", "beta")


@dataclasses.dataclass
class Gain:
    """The module gives (weight + offset)·n(x) + bias."""

    weight: Tensor
    bias: Optional[Tensor]
    offset: float


def gains_of(norm: torch.nn.Module, where: str) -> list[Gain]:
    """One, or one for each head where the module is a list of normalisations. Raises ValueError in words."""
    norm = getattr(norm, "_orig_mod", norm)  # compiled
    children = list(norm.children())
    if len(children) == 1 and isinstance(children[0], torch.nn.ModuleList) and not _own(norm):
        return [_gain(part, f"{where}.{number}") for number, part in enumerate(children[0])]
    return [_gain(norm, where)]


def _own(norm: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in norm._parameters.items() if value is not None}


def _gain(norm: torch.nn.Module, where: str) -> Gain:
    own, kind = _own(norm), type(norm).__name__
    if not own:
        raise ValueError(
            f"{where} ({kind}) normalises without a gain, so no weight reaches the size of the scores; "
            "lower the attention's scale instead"
        )
    gain = next((name for name in _GAINS if name in own), None)
    shift = next((name for name in _SHIFTS if name in own), None)
    if gain is None or len(own) != 1 + (shift is not None) or any(True for _ in norm.children()):
        raise ValueError(f"{where} ({kind}) is no normalisation that is known; its parameters are {', '.join(own)}")
    weight = own[gain]
    try:
        offset = _offset(norm, gain, shift, tuple(weight.shape))
    except Exception as error:
        raise ValueError(f"{where} ({kind}) could not be tried on random numbers: {error}") from error
    if offset is None:
        raise ValueError(f"{where} ({kind}) is not (weight + constant) times something that its weight has no part in")
    return Gain(weight, own.get(shift) if shift is not None else None, offset)


def _offset(norm: torch.nn.Module, gain: str, shift: Optional[str], shape: tuple[int, ...]) -> Optional[float]:
    """c where the module is (weight + c)·n(x) + bias; None where it is not. Weight 0 gives c·n, weight 1 (1 + c)·n."""
    generator = torch.Generator().manual_seed(0)

    def random() -> Tensor:
        return torch.randn(shape, generator=generator)

    x = torch.randn((3, *shape), generator=generator)
    probe = _with_parameters(norm)
    with torch.no_grad():

        def tried(weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
            probe._parameters[gain] = torch.nn.Parameter(weight, requires_grad=False)
            if shift is not None:
                value = torch.zeros(shape) if bias is None else bias
                probe._parameters[shift] = torch.nn.Parameter(value, requires_grad=False)
            out: Tensor = type(probe).forward(probe, x)
            return out.double()

        none, one = tried(torch.zeros(shape)), tried(torch.ones(shape))
        n = one - none
        size = n.abs().max()
        if not bool(torch.isfinite(n).all()) or float(size) < 1e-6:
            return None
        offset = float((none * n).sum() / n.square().sum())
        offset = round(offset) if abs(offset - round(offset)) < 1e-3 else offset
        weight, bias = random(), random()
        expected = (weight.double() + offset) * n
        if shift is not None:
            expected = expected + bias.double()
        found = tried(weight, bias)
        if found.shape != x.shape or float((found - expected).abs().max()) > 1e-3 * float(size) * (2 + abs(offset)):
            return None
    return offset


def _with_parameters(norm: torch.nn.Module) -> Any:
    """The same module with a table of parameters of its own, so that trying it changes nothing; hooks stay out of it,
    as `forward` is called directly."""
    probe = norm.__class__.__new__(norm.__class__)
    probe.__dict__.update(norm.__dict__)
    probe.__dict__["_parameters"] = dict(norm._parameters)
    return probe
