"""Tests that run on a GPU, in a separate process, with PyTorch or only the CUDA driver.

In: requests on standard input. Out: measurements as JSON lines. Never here: an import of other packages of the product.
"""
