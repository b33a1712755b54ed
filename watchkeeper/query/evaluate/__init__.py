"""The evaluator of the embedded engine.

In: a syntax tree and all its evaluation times. Out: one value for the whole tree, in columns of series × steps.
Each node is evaluated once for all steps. Never here: text, storage layout, the clock.
"""
