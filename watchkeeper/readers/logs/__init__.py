"""Parsers for log lines: kernel log, journald, syslog, and the formats of log shippers.

In: text. Out: records with time, node and message. Never here: the cause of a message.
"""
