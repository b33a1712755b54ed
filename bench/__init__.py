"""Benchmarks: speed and memory as numbers that can be compared over time."""
