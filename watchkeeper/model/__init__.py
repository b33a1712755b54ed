"""The nouns on which all stages meet: labels, samples, fleet, events, alerts, incidents, diagnosis, actions.

Comes in: nothing. Goes out: frozen values and pure functions over them. Never here: I/O, clocks,
threads, NumPy, or a decision that belongs to one stage.
"""
