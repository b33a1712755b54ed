"""Stage 6: evidence in, ranked findings out.

Comes in: an incident, its events and the series around it. Goes out: a Diagnosis whose findings carry
evidence, next steps and what was ruled out. Never here: a verdict without evidence, or an action.
"""
