"""Stage 6: evidence in, ranked findings out.

In: an incident, its events and the series of its place. Out: a Diagnosis whose findings have evidence, next steps and
the causes that were ruled out. Never here: a verdict without evidence, or an action.
"""
