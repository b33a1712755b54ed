"""The PromQL language: parse text to a tree, and print a tree as text.

In: an expression as text. Out: a typed tree (`ast`) whose nodes have positions, or a QueryError with line and column.
Never here: samples, evaluation, I/O.
"""
