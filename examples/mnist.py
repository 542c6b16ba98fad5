"""Train the CNN of examples/cnn.py: its former name."""

from .cnn import main, train  # noqa: F401

if __name__ == "__main__":
    main()
