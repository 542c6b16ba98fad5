"""What the options of all programs may be: types for argparse."""

from __future__ import annotations

import argparse
import math

import tinymp as mp
from tinymp import optim
from tinymp.backend.extras import hint


def natural(text: str) -> int:
    """An integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A positive integer."""
    if natural(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def rate(text: str) -> float:
    """A positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def policy(text: str) -> str:
    """The name of a policy, in small letters, that can be compared with FP32."""
    known = [name.lower() for name in mp.POLICIES if name != "FP32"]
    if text in known:
        return text
    if mp.BF16 is None and text.startswith(("bf16", "fp8")):  # FP8 is emulated in BF16
        raise argparse.ArgumentTypeError(f"{text} needs ml_dtypes on the CPU: {hint('bf16')}")
    raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}, got {text!r}")


def add_policy(p: argparse.ArgumentParser) -> None:
    """The option --policy."""
    p.add_argument(
        "--policy",
        type=policy,
        default="mixed",
        metavar="NAME",
        help="what to compare with FP32: mixed (the default), bf16, fp8, or another name in tinymp.POLICIES",
    )


def loss_scale(text: str) -> str:
    """What names a loss scaler: "none", "dynamic", or a number."""
    loss_scaler(text)  # or it says what is wrong
    return text


def loss_scaler(text: str) -> optim.LossScaler:
    """A new one of that name."""
    if text == "none":
        return optim.NoLossScaler()
    if text == "dynamic":
        return optim.DynamicLossScaler()
    try:
        return optim.StaticLossScaler(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected none, dynamic or a positive number, got {text!r}") from None
