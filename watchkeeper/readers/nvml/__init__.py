"""What the NVIDIA driver says about each GPU, asked through NVML.

Comes in: the pynvml module and the families somebody wants. Goes out: numbers under DCGM's names and
units; what is unsupported is absent. Never here: a deadline, a retry, or a second try: a call may hang
for ever, and who calls must be able to lose the whole operating-system process it runs in. Nor a dataclass or
anything else that brings `inspect` along: that process runs on every GPU node, and they cost it 2 MiB.
"""
