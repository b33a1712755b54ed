"""A typed HTTP client of the hub, for the command line and other programs.

Comes in: an address and a token. Goes out: model values. Never here: anything but the standard library
and model/.
"""
