"""The accounting API: jobs, usage, cost, capacity and what-if.

In: requests. Out: typed answers. Never here: calculations; `accounting` and `capacity` make them.
"""
