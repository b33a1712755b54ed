"""Small tools for every package: time, durations, files, logs, own metrics, JSON.

In: plain values. Out: plain values. Never here: GPUs, PromQL, a server or a client, or anything specific to fleets.
"""
