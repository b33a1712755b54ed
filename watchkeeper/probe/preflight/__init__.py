"""`watchkeeper preflight`: go or no-go for the nodes of a job before it starts.

In: nodes and a transport. Out: a verdict for each node. Never here: a change to a node.
"""
