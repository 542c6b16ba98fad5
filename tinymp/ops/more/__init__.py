"""Functions beyond those that a first training and the lessons need. Each is loaded when it is first named."""
