"""Commands about usage, cost and capacity.

Comes in: options. Goes out: text or JSON. Never here: logic.
"""
