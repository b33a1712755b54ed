"""Notifications: which receiver gets which incident, when, and until it is delivered.

Comes in: incidents, routes, silences. Goes out: messages to receivers, recorded in the outbox. Never here: what
an incident consists of (incidents), or its cause (diagnose).
"""
