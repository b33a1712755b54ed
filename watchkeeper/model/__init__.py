"""The types that all stages share: labels, samples, fleet, events, alerts, incidents, diagnosis, actions.

In: nothing. Out: frozen values and pure functions over them. Never here: I/O, clocks,
threads, NumPy, or a decision that belongs to one stage.
"""
