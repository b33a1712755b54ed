"""Check a monitoring stack: a running Prometheus, its operator and its dashboards, from outside.

In: responses of the Prometheus and Kubernetes APIs. Out: findings, each with evidence and a fix. Never here: a socket
(the caller connects), a change to the stack, or a verdict without data.
"""
