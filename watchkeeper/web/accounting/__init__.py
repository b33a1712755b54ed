"""The accounting API: jobs, usage, cost, capacity and what-if.

Comes in: requests. Goes out: typed answers. Never here: a calculation; accounting and capacity own them.
"""
