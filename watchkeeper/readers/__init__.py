"""Parsers: each reads one device interface or text format into typed records.

In: bytes or text of one source. Out: records, and the problems of what could not be read. Never here: a
schedule, a thread, a network client, or a judgement about the records.
"""
