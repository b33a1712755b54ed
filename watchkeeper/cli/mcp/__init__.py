"""`watchkeeper mcp`: a hub's answers for assistants, over the Model Context Protocol.

Comes in: requests on standard input. Goes out: answers on standard output. Never here: a change to the fleet.
"""
