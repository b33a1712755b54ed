"""Log lines: kernel log, journald, syslog, and what log shippers put around them.

Comes in: text. Goes out: records with time, node and message. Never here: what a message means.
"""
