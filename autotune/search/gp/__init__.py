"""Model scores over the candidates by a Gaussian process. Hides encoding, kernels and hyper-parameters."""
