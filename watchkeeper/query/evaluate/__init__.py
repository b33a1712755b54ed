"""The evaluator of the embedded engine.

Comes in: a syntax tree and all times it is wanted at. Goes out: one value for the whole tree, columns of
series × steps. Each node is evaluated once for all steps. Never here: text, storage layout, the clock.
"""
