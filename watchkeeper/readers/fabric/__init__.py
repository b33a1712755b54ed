"""Parsers for InfiniBand ports and fabrics.

In: sysfs, infiniband-diags output, UFM's JSON. Out: ports and links. Never here: a threshold or a judgement.
"""
