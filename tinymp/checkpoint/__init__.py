"""Checkpoints: all that a run needs to resume as if never stopped, in one safetensors file. No pickle anywhere."""

from .checkpointer import Checkpointer
from .saving import load, load_weights, peek, save, save_weights

__all__ = ["Checkpointer", "load", "load_weights", "peek", "save", "save_weights"]
