"""A Kubernetes cluster, watched: nodes, GPU pods, quotas and claims as its API server reports them.

Comes in: lists and watches. Goes out: `model.cluster` values, targets and series. Never here: a write to the API
server.
"""
