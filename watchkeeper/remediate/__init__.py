"""Stage 7: from a diagnosis to a plan, and, where allowed, to a healthy node.

Comes in: a diagnosis and a policy. Goes out: a plan with its dry run. Never here: an action that is not
guarded, audited and asked for by configuration.
"""
