"""torch.utils.data: tinymp's datasets, samplers and loader."""

from ..space import fill, names

_NAMES = """
    BatchSampler ConcatDataset DataLoader Dataset RandomSampler Sampler SequentialSampler Subset SubsetRandomSampler
    TensorDataset WeightedRandomSampler default_collate random_split
"""
fill(globals(), "torch.utils.data", names("data", _NAMES))
