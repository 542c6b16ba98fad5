"""What a loader does beyond a TensorDataset in one thread; samplers, datasets. Each is loaded when first named."""
