"""Stage 7: turn a diagnosis into a plan and, if the settings allow it, repair the node.

In: a diagnosis and a policy. Out: a plan with its dry run, and repairs. Never here: an action that the settings do not
allow, that no guard has checked, or that is not stored before it is performed.
"""
