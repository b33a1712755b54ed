"""The node's kernel log, followed in /dev/kmsg, systemd's journal or a file, from the last saved position.

In: kernel records. Out: events. Never here: what an event means for the fleet.
"""
