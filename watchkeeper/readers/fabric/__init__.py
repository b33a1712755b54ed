"""InfiniBand ports and fabrics in the forms in which they can be read.

Comes in: sysfs, infiniband-diags output, UFM's JSON. Goes out: ports and links. Never here: a limit or an opinion.
"""
