"""One device or text format each, read into typed facts.

Comes in: bytes or text of one source. Goes out: facts, and what could not be read. Never here: a
schedule, a thread, a network client, or an opinion about what the facts mean.
"""
