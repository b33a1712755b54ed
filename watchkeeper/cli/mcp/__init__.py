"""`watchkeeper mcp`: serve a hub to AI assistants over the Model Context Protocol.

In: requests on standard input. Out: responses on standard output. Never here: a change to the fleet.
"""
