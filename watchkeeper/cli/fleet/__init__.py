"""Commands that ask a hub about the fleet: incidents, nodes, jobs, top, who.

In: options. Out: text or JSON. Never here: logic.
"""
