"""Small tools without a subject: time, durations, files, logs, own metrics, the wire format.

Comes in: plain values. Goes out: plain values. Never here: GPUs, PromQL, a server or a client, or anything that
knows what Watchkeeper is for.
"""
