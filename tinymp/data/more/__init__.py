"""Loading in threads, from other datasets, in a sampler's order. Each module is loaded when first named."""
