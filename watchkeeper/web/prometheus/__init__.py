"""Prometheus' HTTP API: queries, rules, targets, federation and remote write.

In: requests of Prometheus clients. Out: answers in Prometheus' formats. Never here: evaluation of PromQL.
"""
