"""Kubernetes and Slurm in the forms in which they answer: objects, JSON, printed text.

Comes in: documents and text. Goes out: typed records. Never here: a request to a server.
"""
