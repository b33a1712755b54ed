"""Which pod, Slurm job or process holds each GPU of this node.

In: the kubelet, Slurm's job files, /proc. Out: the holders of each GPU, as labels on the page. Never here: a guess.
"""
