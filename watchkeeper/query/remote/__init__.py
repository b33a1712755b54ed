"""Talking to a server that keeps samples elsewhere.

Comes in: settings of such a server, and requests or samples for it. Goes out: answers as our own values.
`query.prometheus` is the engine made of these parts. Never here: what a query means, or knowledge of a rule.
"""
