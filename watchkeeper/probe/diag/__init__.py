"""`watchkeeper diag`: active tests of this node's GPUs, compared with the expected values of their model.

In: level and GPUs. Out: a verdict for each test with its measurement. Never here: a repair.
"""
