"""Typed access to the shipped knowledge in packs/: Xid codes, causes, GPU models, plans.

In: the data files. Out: frozen rows, looked up by code or name; an unknown code has a row too.
Never here: decisions, I/O beyond reading packs/, facts written as code.
"""
