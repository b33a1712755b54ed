"""Notifications: which receiver is notified of which incident and when, and their delivery.

In: incidents, routes, silences. Out: messages to receivers, recorded in the outbox. Never here: correlation
(`incidents`) or causes (`diagnose`).
"""
