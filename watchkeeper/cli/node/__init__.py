"""Commands that run on a GPU node: agent, scan, diag, profile, preflight.

In: options. Out: text or JSON. Never here: logic.
"""
