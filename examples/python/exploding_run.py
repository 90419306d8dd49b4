"""A training run whose attention explodes, start to finish.

A small transformer learns to copy: token i + 16 repeats token i. Its learning rate is too high for the query and key
projections, so the scores grow, softmax freezes, and the loss stops falling. `rootdk.watch` says when, in which layer
and why. With QK-clip from step 100 on (`--clip`) the same run recovers; with QK-norm in the model (`--norm`) it never
explodes.

    python exploding_run.py                 # explodes
    python exploding_run.py --clip          # the same, and then mended
    python exploding_run.py --norm
    python exploding_run.py --report report.html --svg run.svg
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

import rootdk
import torch
import torch.nn.functional as F
from rootdk import Alarm

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY = 32, 4, 2, 32, 16


class Attention(torch.nn.Module):
    def __init__(self, norm: bool):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.norm:
            q, k = (F.rms_norm(y, (y.shape[-1],)) for y in (q, k))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Model(torch.nn.Module):
    def __init__(self, norm: bool = False):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.attention = torch.nn.ModuleList(Attention(norm) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions
        for norm, attention in zip(self.norms, self.attention):
            x = x + attention(norm(x))
        return self.head(x)


@dataclasses.dataclass
class Run:
    losses: list[float]
    largest: list[float]  #: score of any head
    watch: rootdk.Watch


def train(
    *, steps: int = 300, rate: float = 0.1, clip_from: int | None = None, norm: bool = False, seed: int = 0
) -> Run:
    """`rate` is that of the query and key projections; everything else learns at 0.003. `clip_from`: QK-clip from this
    step on."""
    torch.manual_seed(seed)
    model = Model(norm)
    fast = [p for a in model.attention for p in (a.q_proj.weight, a.k_proj.weight)]
    slow = [p for p in model.parameters() if all(p is not f for f in fast)]
    optimizer = torch.optim.Adam([{"params": fast, "lr": rate}, {"params": slow, "lr": 3e-3}])
    losses, largest = [], []
    quiet = Alarm(max_score=50, call=lambda event: None)  # watch.alarms keeps them
    with rootdk.watch(model, on=quiet) as watch:
        for step in range(steps):
            half = torch.randint(0, VOCABULARY, (16, LENGTH // 2))
            tokens = torch.cat([half, half], 1)
            logits = model(tokens)[:, LENGTH // 2 - 1 : -1]
            loss = F.cross_entropy(logits.flatten(0, 1), half.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.loss(loss)
            losses.append(loss.item())
            largest.append(max(float(watch.stats(layer).raw_max.max()) for layer in watch.layers))
            if clip_from is not None and step >= clip_from:
                watch.qk_clip(tau=20)
    return Run(losses, largest, watch)


def svg(runs: dict[str, Run]) -> str:
    """Loss and largest score over the steps, one line per run."""
    width, height, left, gap = 720, 230, 60, 40
    colours = ["#d55e00", "#0072b2", "#008f68"]
    tall = 2 * height + gap
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{tall}" fill="#fff"/>',
    ]
    for panel, (title, pick) in enumerate((("loss", lambda r: r.losses), ("largest score c·q·k", lambda r: r.largest))):
        top = panel * (height + gap) + 24
        most = max(max(pick(run)) for run in runs.values()) * 1.02
        bottom = top + height - 44
        out.append(f'<text x="{left}" y="{top - 8}" font-weight="bold">{title}</text>')
        out.append(f'<path d="M{left} {top}V{bottom}H{width - 10}" fill="none" stroke="#888"/>')
        for part in (0, 0.5, 1):
            y = bottom - (bottom - top) * part + 4
            out.append(f'<text x="{left - 6}" y="{y:.0f}" text-anchor="end">{most * part:.3g}</text>')
        for number, (name, run) in enumerate(runs.items()):
            values, colour = pick(run), colours[number % 3]
            points = " ".join(
                f"{left + (width - left - 10) * i / (len(values) - 1):.1f},{bottom - (bottom - top) * y / most:.1f}"
                for i, y in enumerate(values)
            )
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            if panel == 0:
                y = top + 16 * (number + 1)
                out.append(f'<text x="{width - 12}" y="{y}" text-anchor="end" fill="{colour}">{name}</text>')
        out.append(f'<text x="{width - 10}" y="{bottom + 16}" text-anchor="end">step {len(values)}</text>')
    return "\n".join([*out, "</svg>\n"])


def say(name: str, run: Run) -> None:
    print(
        f"{name}: loss {run.losses[0]:.2f} at first, {sum(run.losses[-20:]) / 20:.2f} at last; "
        f"largest score {max(run.largest):.0f}, {run.largest[-1]:.0f} at last; {len(run.watch.alarms)} alarms"
    )
    if run.watch.alarms:
        print(f"  {run.watch.alarms[0]}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--clip", action="store_true", help="QK-clip at 20 from step 100 on")
    arguments.add_argument("--norm", action="store_true", help="QK-norm in the model")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--report", type=pathlib.Path, help="where to write the report of the run")
    arguments.add_argument("--svg", type=pathlib.Path, help="draw all three runs there")
    given = arguments.parse_args()
    if given.svg:
        kinds = {"as it is": {}, "QK-clip from step 100": {"clip_from": 100}, "QK-norm": {"norm": True}}
        runs = {name: train(steps=given.steps, **options) for name, options in kinds.items()}
        given.svg.write_text(svg(runs), encoding="utf-8")
        for name, run in runs.items():
            say(name, run)
        return
    run = train(steps=given.steps, clip_from=100 if given.clip else None, norm=given.norm)
    say("QK-norm" if given.norm else "QK-clip from step 100" if given.clip else "as it is", run)
    print(run.watch.table(worst=4))
    if given.report:
        run.watch.report(given.report)


if __name__ == "__main__":
    main()
