"""Stage 5: many signals become one incident.

Comes in: events and alerts with their place and cause. Goes out: incidents and what changed. Never here:
finding out why (diagnose), or doing something about it (remediate).
"""
