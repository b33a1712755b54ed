"""`watchkeeper profile`: record a workload, divide it into segments, and classify what bounds each.

In: GPM and NVML samples. Out: segments with a class, evidence and advice. Never here: a live alert.
"""
