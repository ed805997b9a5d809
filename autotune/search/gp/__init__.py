"""The Gaussian process over the candidates: encoding, kernels, hyper-parameters, posterior."""
