"""Stage 5: many signals become one incident.

In: events and alerts with their place and cause. Out: incidents and their changes. Never here: finding the cause
(diagnose), or repairs (remediate).
"""
