"""Checkpoints: what a run needs to go on as if it had never stopped, in one safetensors file. No pickle anywhere."""

from .checkpointer import Checkpointer
from .saving import load, load_weights, peek, save, save_weights

__all__ = ["Checkpointer", "load", "load_weights", "peek", "save", "save_weights"]
