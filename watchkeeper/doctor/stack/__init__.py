"""Is the monitoring itself right? A running Prometheus, its operator and its dashboards, looked at from outside.

Comes in: answers of the Prometheus and Kubernetes APIs. Goes out: findings, each with evidence and a fix. Never here: a
socket (the caller asks), a change to what is looked at, or a verdict without something that was read.
"""
