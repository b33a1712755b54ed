"""Stage 7: from a diagnosis to a plan, and, where allowed, to a healthy node.

Comes in: a diagnosis and a policy. Goes out: a plan with its dry run, and repairs, each step of which the trust ladder,
the guards and, in mode ask, a person have let through. Never here: an action that is not guarded, written down before
it is made, and asked for by configuration.
"""
