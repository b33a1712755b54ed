"""Watchkeeper sees every GPU of a fleet, says what is wrong and why, and proposes what to do.

ARCHITECTURE.md is the map: data flows left to right through the stages, imports point down.
"""

__version__ = "0.1.0"
