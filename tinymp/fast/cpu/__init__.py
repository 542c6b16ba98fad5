"""Fast paths on NumPy's arrays. They go through the precision primitives, so that an observer changes no bit."""
