"""`watchkeeper profile`: record a workload, divide it into segments, and say what bounds each.

Comes in: GPM and NVML samples. Goes out: segments with a class, evidence and advice. Never here: a live alert.
"""
