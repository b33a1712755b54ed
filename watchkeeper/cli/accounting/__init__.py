"""Commands about usage, cost and capacity.

In: options. Out: text or JSON. Never here: logic.
"""
