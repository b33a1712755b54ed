"""The node's GPUs: sampled through NVML or DCGM in a child process, kept as the newest reading, written as a page.

Comes in: readings. Goes out: samples, pages, driver events. Never here: an opinion about a reading, or who holds a GPU.
"""
