"""Commands that read the state of the fleet from a hub: incidents, nodes, jobs, top, who.

In: options. Out: text or JSON. Never here: logic.
"""
