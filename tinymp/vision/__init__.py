"""Boxes and regions of interest, for detectors. Their functions are public in tinymp.ops."""
