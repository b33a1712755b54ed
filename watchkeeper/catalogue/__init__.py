"""Typed access to the shipped knowledge in packs/: Xid codes, causes, GPU models, plans.

Comes in: the data files. Goes out: frozen rows, looked up by code or name; an unknown code is an answer.
Never here: decisions, I/O beyond reading packs/, facts written as code.
"""
