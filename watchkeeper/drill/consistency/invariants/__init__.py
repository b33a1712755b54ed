"""What must hold between all answers of a hub, one module for each subject; `table` says what an invariant is.

In: looks. Out: contradictions, each with the place and the values. Never here: a request, a clock, or knowledge of the
injected faults.
"""
