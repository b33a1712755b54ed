"""HTTP, DNS, addresses and credentials: what talks to the network on behalf of the packages above.

Comes in: an address and how to authenticate. Goes out: status, headers and bytes, or an error that says what failed.
Never here: what a body means.
"""
