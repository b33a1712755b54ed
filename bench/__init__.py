"""Benches: how fast it is, as numbers that a person can compare from one month to the next."""
