"""Threads and the state of a loader, and sequences of different lengths. Each is loaded when it is first named."""
