"""The node's kernel log, followed in /dev/kmsg, systemd's journal or a file, from where the last run stopped.

Comes in: kernel records. Goes out: events. Never here: what an event means for the fleet.
"""
