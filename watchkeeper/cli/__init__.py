"""The command line, one module per command, without logic: parse options, call, print.

Exit codes: 0 no problem, 1 problem found or command failed, 2 usage error, 3 unknown.
"""
