"""Commands that run on a GPU node: agent, scan, diag, profile, preflight.

Comes in: options. Goes out: text or JSON. Never here: logic.
"""
