"""Read each GPU from the NVIDIA driver through NVML.

In: the pynvml module and the metric families to read. Out: values with DCGM's names and units; unsupported values are
absent. Never here: a deadline or a retry. A call may hang forever, so the caller runs it in a process that it can
abandon. Never a dataclass or anything else that imports `inspect` either: that costs 2 MiB, and the process runs on
every GPU node.
"""
