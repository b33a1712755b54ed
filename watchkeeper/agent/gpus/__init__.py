"""The node's GPUs: read through NVML or DCGM in a child process and rendered as a /metrics page.

In: readings. Out: samples, pages, driver events. Never here: a diagnosis of a reading, or the holder of a GPU.
"""
