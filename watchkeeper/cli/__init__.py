"""One file per command, no logic: parse, ask, print.

Exit codes: 0 fine, 1 trouble found or the work failed, 2 wrong use, 3 cannot tell.
"""
