"""FP16 or BF16 for learning by reward, where one program samples and another one trains (arXiv 2510.26788)?

    python -m examples.reinforcement

A small Transformer sorts eight digits. It was shown a few examples, and goes on by reward: the share of digits in the
right place. Sampler and trainer have the same weights and mathematics, but other sums. The sampler adds up halves of
each product, as two GPUs do that share a layer, keeps keys and values, and has half of the batch. So the answers come
from its mu, not from the trainer's pi. The trainer ignores that, or weighs each token by pi / mu.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit.trace import commit
from tinymp.backend.extras import hint
from tinymp.checkpoint import writing
from tinymp.lab import shipped

from . import measure
from .paper.trials import table

DIGITS, WIDTH, HEADS, BLOCKS, EXAMPLES = 8, 32, 2, 2, 150
QUESTIONS, ANSWERS = 8, 16  # of a step: so many rows of digits, so many answers to each
RUNS = {"FP32": (mp.FP32, False), "FP16": (mp.MIXED, False), "BF16": (mp.BF16, False)}
RUNS |= {"FP16, weighed": (mp.MIXED, True), "BF16, weighed": (mp.BF16, True)}


class Sorter(nn.Module):
    """Tokens (N, L), the digits, a 10, and what is sorted so far -> logits (N, L, 10) of the token after each."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(11, WIDTH), nn.Embedding(2 * DIGITS, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2 * BLOCKS + 1)])
        sizes = BLOCKS * ((1, 3), (1, 1), (1, 4), (4, 1))
        self.layers = nn.ModuleList([*(nn.Linear(a * WIDTH, b * WIDTH) for a, b in sizes), nn.Linear(WIDTH, 10)])

    def forward(self, tokens: np.ndarray, past: dict[int, mp.Tensor] | None = None) -> mp.Tensor:
        """past: the sampler's keys and values of the tokens before these, by block; None for the trainer."""
        linear = halves if past is not None else lambda x, layer: layer(x)
        n, length = tokens.shape
        before = past[0].shape[3] if past else 0
        x = self.token(mp.tensor(tokens)) + self.place(mp.tensor(np.arange(before, before + length)))
        for i in range(BLOCKS):
            qkv, out, up, down = self.layers[4 * i : 4 * i + 4]
            heads = linear(self.norms[2 * i](x), qkv).reshape(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            kv = ops.cat([past[i], heads[1:]], 3) if past and before else heads[1:]
            if past is not None:
                past[i] = kv
            seen = ops.scaled_dot_product_attention(heads[0], kv[0], kv[1], is_causal=length > 1)
            x = x + linear(seen.transpose(1, 2).reshape(n, length, WIDTH), out)
            x = x + linear(ops.relu(linear(self.norms[2 * i + 1](x), up)), down)
        return linear(self.norms[-1](x), self.layers[-1])


def halves(x: mp.Tensor, layer: nn.Linear) -> mp.Tensor:
    """The sampler's product: of two halves, each stored before they are added."""
    w, half = layer.weight, x.shape[-1] // 2
    return ops.linear(x[..., :half], w[:, :half]) + ops.linear(x[..., half:], w[:, half:], layer.bias)


def log_pi(model: Sorter, tokens: np.ndarray) -> mp.Tensor:
    """The trainer's ln pi of each sorted digit in tokens (N, 2 DIGITS + 1), in FP32: (N, DIGITS)."""
    logits = ops.log_softmax(model(tokens[:, :-1])[:, DIGITS:].float(), -1)
    return logits.gather(2, mp.tensor(tokens[:, DIGITS + 1 :, None])).squeeze(2)


def asked(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows of digits, with the 10 that ends them: (n, DIGITS + 1)."""
    return np.c_[rng.integers(0, 10, (n, DIGITS)), np.full(n, 10)]


def answer(model: Sorter, tokens: np.ndarray, rng: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with the sampler's answers, drawn from mu (without rng the most probable), and ln mu of each."""
    past: dict[int, mp.Tensor] = {}
    found, new = [], tokens
    with mp.no_grad():
        for _ in range(DIGITS):
            logits = ops.log_softmax(model(new, past)[:, -1].float(), -1).numpy()
            new = (logits + (rng.gumbel(size=logits.shape) if rng else 0)).argmax(1)[:, None]  # a draw from softmax
            tokens = np.c_[tokens, new]
            found.append(np.take_along_axis(logits, new, 1))
    return tokens, np.concatenate(found, 1)


def reward(tokens: np.ndarray) -> np.ndarray:
    """The share of digits in the right place: (N,)."""
    return (np.sort(tokens[:, :DIGITS], 1) == tokens[:, DIGITS + 1 :]).mean(1)


def train(policy: mp.Policy, weighed: bool, seed: int, steps: int) -> dict[str, Any]:
    """From examples in FP32, then by reward; the seed fixes all draws. weighed: each token by pi / mu, at most 2."""
    mp.manual_seed(seed)
    model, rng = Sorter(), np.random.default_rng(seed)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EXAMPLES):
        tokens = asked(rng, 128)
        log_pi(model, np.c_[tokens, np.sort(tokens[:, :DIGITS], 1)]).mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
    model = policy.cast(model)
    scaler = optim.DynamicLossScaler() if policy is mp.MIXED else optim.NoLossScaler()
    rewards, apart = [], []
    with mp.use(policy):
        for _ in range(steps):
            questions = np.repeat(asked(rng, QUESTIONS), ANSWERS, 0)
            tokens, mu = map(np.concatenate, zip(*(answer(model, half, rng) for half in np.split(questions, 2))))
            scores = reward(tokens).reshape(QUESTIONS, ANSWERS)
            better = (scores - scores.mean(1, keepdims=True)) / (scores.std(1, keepdims=True) + 1e-2)
            pi = log_pi(model, tokens)
            logs = pi.numpy() - mu  # ln(pi / mu)
            weight = better.reshape(-1, 1) * (np.exp(logs).clip(0, 2) if weighed else np.ones_like(logs))
            scaler.scale(-(pi * mp.tensor(weight.astype(np.float32))).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            rewards.append(scores.mean())
            apart.append([logs.std(), abs(logs).max()])
        right = reward(answer(model, asked(np.random.default_rng(1), 2000), None)[0]).mean()
    parts = [np.array_split(x, min(steps, 50)) for x in (rewards, np.array(apart)[:, 0])]  # of each a mean is kept
    curves = [[float(f"{part.mean():.4g}") for part in x] for x in parts]
    return {"right": float(right), "largest": float(np.max(apart)), "rewards": curves[0], "spreads": curves[1]}


def main(arguments: list[str] | None = None) -> None:
    """All runs of all seeds: reinforcement.json, a table and a picture."""
    p = measure.Parser(prog=shipped.command("reinforcement"), description=__doc__.split("\n\n")[0])
    p.add_argument("--seeds", type=measure.positive, default=3, help="how many (3)")
    p.add_argument("--steps", type=measure.positive, default=400, help="by reward (400)")
    p.add_argument("--out", type=pathlib.Path, default="runs/reinforcement", help="where the results go")
    options = p.parse_args(arguments)
    if mp.BF16 is None:
        p.error(f"BF16 needs ml_dtypes on the CPU: {hint('bf16')}")
    mp.backend.cpu.keep_freed_memory()
    found = {name: [train(*run, seed, options.steps) for seed in range(options.seeds)] for name, run in RUNS.items()}
    content = {"commit": commit("."), "environment": dict(mp.info()), "steps": options.steps, "runs": found}
    options.out.mkdir(parents=True, exist_ok=True)
    writing.write(options.out / "reinforcement.json", json.dumps(content) + "\n")
    print(report(content, options.out))


def draw_bands(path: pathlib.Path, panels: dict[str, dict[str, Any]], steps: int) -> None:
    """panels: {title: {name: a curve per seed}} over so many steps; the means, and pale the least and the most."""
    with measure.figure(path, (6 * len(panels), 4)) as whole:
        for axes, (title, curves) in zip(whole.subplots(1, len(panels)), panels.items()):
            for (name, values), color in zip(curves.items(), (*measure.COLORS, "0.5")):
                x = np.linspace(0, steps, len(values[0]))
                axes.plot(x, np.mean(values, 0), color=color, label=name)
                axes.fill_between(x, np.min(values, 0), np.max(values, 0), color=color, alpha=0.1)
            apart = [np.mean(values) for values in curves.values()]
            axes.set(xlabel="step", title=title, yscale="log" if max(apart) > 100 * min(apart) else "linear")
            axes.legend(fontsize=9)


def report(content: dict[str, Any], folder: pathlib.Path) -> str:
    """The picture, into a folder, and the table."""
    runs, rows = content["runs"], []
    late = {name: np.array([np.mean(run["rewards"][-10:]) for run in mine]) for name, mine in runs.items()}
    right = {name: np.array([run["right"] for run in mine]) for name, mine in runs.items()}
    for name, mine in runs.items():
        shares = [late[name], late[name] - late["FP32"], right[name], right[name] - right["FP32"]]
        cells = [", ".join(f"{100 * x:.1f}" for x in of_seeds) for of_seeds in shares]
        spread, largest = np.mean([run["spreads"] for run in mine]), max(run["largest"] for run in mine)
        rows.append([name, *cells, f"{spread:.2g}", f"{largest:.2g}"])
    panels = {
        "rewards": "Share of digits in the right place, as sampled",
        "spreads": "Standard deviation of ln(pi / mu)",
    }
    curves = {title: {name: [run[of] for run in mine] for name, mine in runs.items()} for of, title in panels.items()}
    draw_bands(folder / "reinforcement.png", curves, content["steps"])
    head = "", "reward, last fifth, %", "less FP32's", "held out, %", "less FP32's", "ln(π/μ): deviation", "largest"
    return table(head, rows, "---")


if __name__ == "__main__":
    main()
