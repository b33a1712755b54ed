"""Go or no-go for a job's nodes before it starts.

Comes in: nodes and how to reach them. Goes out: a verdict per node. Never here: a change to a node.
"""
