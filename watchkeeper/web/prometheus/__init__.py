"""Prometheus' HTTP API: queries, rules, targets, federation and remote write.

Comes in: requests of Prometheus clients. Goes out: answers in Prometheus' shapes. Never here: evaluation of PromQL.
"""
