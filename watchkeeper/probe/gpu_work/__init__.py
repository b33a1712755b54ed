"""The work that runs on a GPU during a test, in a process of its own with PyTorch or the bare driver.

Comes in: one request on standard input. Goes out: one measurement as JSON. Never here: an import of the product.
"""
