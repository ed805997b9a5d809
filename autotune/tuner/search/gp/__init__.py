"""Gaussian process of the scores over the candidates. Hides encoding, kernels and
hyper-parameters."""
