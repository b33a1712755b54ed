"""Watch a Kubernetes cluster: nodes, GPU pods, quotas and resource claims.

In: lists and watches of the API server. Out: `model.cluster` values, targets and series. Never here: a write to the API
server.
"""
