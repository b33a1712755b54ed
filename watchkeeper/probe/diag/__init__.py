"""`watchkeeper diag`: active tests of this node's GPUs, judged against what each model reaches.

Comes in: the chosen level and GPUs. Goes out: a verdict per test with its measurement. Never here: a repair.
"""
