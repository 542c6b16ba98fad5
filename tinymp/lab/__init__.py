"""Tools that run programs to ask about their precision: ablate, bisect, diff, explain, and the command `tinymp`."""
