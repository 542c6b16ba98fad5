"""Studies of accumulators: sums as arithmetic other than FP32 accumulators would make them."""
