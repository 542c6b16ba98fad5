"""Datasets in folders and files, and batches of sequences. Each is loaded when it is first named."""
