"""A file with one service level objective."""

from __future__ import annotations

FILE = """
slos:
  - name: chat-availability
    title: "{{ $labels.model_name }} availability"
    objective: 0.99
    window: 28d
    by: [cluster, model_name]
    errors: rate(requests_total{code="500"}[window])
    total: rate(requests_total[window])
    cause: inference_overload
    action: Look at it
"""
