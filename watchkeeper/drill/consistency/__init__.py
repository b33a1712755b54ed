"""Asks every page, endpoint and command of simulated hubs at many moments, and finds answers that contradict.

In: scenarios, and how to run a command. Out: violations of the invariants. Never here: a repair of what contradicts, or
a second definition of a number.
"""
