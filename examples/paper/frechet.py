"""The Fréchet distance between two sets of pictures, on fixed features: no trained network is needed."""

from __future__ import annotations

import numpy as np

import tinymp as mp
from tinymp import ops


class FrechetDistance:
    """Distance of the distribution of other pictures from that of `images` (N, C, H, W), at least 16 x 16.

    Features are the outputs of a convolutional network with fixed random weights (3 layers with ReLU that each halve
    the picture, then means over 2 x 2 neighbours; FP32), as coordinates on the first principal components of `images`,
    each divided by its standard deviation there. Random weights respond to edges, blur and grain as trained ones do,
    though not to meaning. Both sets are taken as Gaussian (Dowson and Landau, 1982; Heusel et al., 2017, with the
    features of a trained network), in FP64:

        |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))

    As `images` have mean 0 and covariance 1 in these features, that is |m2|^2 + sum of (1 - sqrt(l))^2 over the
    eigenvalues l of C2. It is divided by the number of features: 0 for the same mean and covariance, 1 for the right
    mean without any variety. ValueError if the pictures do not differ.
    """

    def __init__(self, images: np.ndarray, components: int | None = None) -> None:
        if components is None:  # a covariance of few pictures would fit them, not what they were drawn from
            components = min(64, max(1, len(images) // 16))
        random, channels = np.random.default_rng(0), images.shape[1]
        self.weights = []
        for out, kernel in ((32, 5), (64, 3), (64, 3)):
            spread = np.sqrt(2 / (channels * kernel**2))  # keeps the variance through ReLU (He et al., 2015)
            self.weights.append(mp.tensor(spread * random.standard_normal((out, channels, kernel, kernel))).float())
            channels = out
        features = self._features(images)
        self.mean = features.mean(0)
        features -= self.mean
        small = features @ features.T if len(features) < features.shape[1] else features.T @ features
        variances, vectors = np.linalg.eigh(small)  # the same eigenvalues either way, ascending
        kept = np.flatnonzero((variances > 1e-10 * variances[-1]) & (variances > 0))[-components:]
        if not len(kept):
            raise ValueError(f"FrechetDistance: expected pictures that differ, got {len(images)} equal ones")
        directions = features.T @ vectors[:, kept] if len(small) == len(images) else vectors[:, kept]
        directions /= np.linalg.norm(directions, axis=0)
        self.to_unit = directions * np.sqrt((len(images) - 1) / variances[kept])

    def __call__(self, images: np.ndarray) -> float:
        """The distance of `images` (M, C, H, W), M > 1; nan where they are not finite."""
        if not np.isfinite(images).all():
            return float("nan")
        features = (self._features(images) - self.mean) @ self.to_unit
        mean, covariance = features.mean(0), np.atleast_2d(np.cov(features, rowvar=False))
        widths = np.sqrt(np.maximum(np.linalg.eigvalsh(covariance), 0))
        return float((mean @ mean + np.sum((1 - widths) ** 2)) / len(mean))

    def _features(self, images: np.ndarray, batch: int = 100) -> np.ndarray:
        """float64 (N, F)."""
        parts = []
        with mp.no_grad():
            for i in range(0, len(images), batch):
                y = mp.tensor(images[i : i + batch]).float()
                for weight in self.weights:
                    y = ops.relu(ops.conv2d(y, weight, stride=2, padding=weight.shape[-1] // 2))
                parts.append(ops.avg_pool2d(y, 2).flatten(1).numpy().astype(np.float64))
        return np.concatenate(parts)
