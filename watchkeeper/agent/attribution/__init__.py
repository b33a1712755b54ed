"""Which pod, Slurm job or process holds each GPU of this node.

Comes in: the kubelet, Slurm's job files, /proc. Goes out: holders per GPU, as labels of the page. Never here: a guess.
"""
