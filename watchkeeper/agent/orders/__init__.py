"""Work orders: fetched from the hub, checked, done once, answered with a signed receipt.

Comes in: orders of `model.orders`. Goes out: receipts. Never here: a decision about what should be done.
"""
