"""Train the CNN of examples/cnn.py: its former name."""

from .cnn import main, train

__all__ = ["main", "train"]

if __name__ == "__main__":
    main()
