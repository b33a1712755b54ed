"""Parsers for the output of Kubernetes and Slurm: objects, JSON and printed text.

In: documents and text. Out: typed records. Never here: a request to a server.
"""
