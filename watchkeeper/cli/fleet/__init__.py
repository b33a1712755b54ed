"""Commands that ask a hub about the fleet: incidents, nodes, jobs, top, who.

Comes in: options. Goes out: text or JSON. Never here: logic.
"""
