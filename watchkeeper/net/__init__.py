"""HTTP, DNS, addresses and credentials: network access for the packages above.

In: an address and how to authenticate. Out: status, headers and bytes, or an error that says what failed.
Never here: what a body means.
"""
