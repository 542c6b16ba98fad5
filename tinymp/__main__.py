"""`python -m tinymp ...` is the command `tinymp ...`."""

from .lab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
