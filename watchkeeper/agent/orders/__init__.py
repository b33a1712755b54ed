"""Work orders: fetched from the hub, checked, run once, and answered with a signed receipt.

In: orders of `model.orders`. Out: receipts. Never here: a decision about which work is needed.
"""
