"""Game days without hardware: run simulated faults through the real pipeline and score the result.

In: scenarios of the packs, hours of healthy operation. Out: which faults were detected, how fast and how correctly, and
the false alarms. Never here: a clock, HTTP, or knowledge of a fault other than its `truth`.
"""
