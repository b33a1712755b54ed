"""The PromQL language: text to tree and back.

Comes in: an expression as text. Goes out: a typed tree (`ast`) in which every node knows where it
stands, or a QueryError with line and column. Never here: samples, evaluation, I/O.
"""
