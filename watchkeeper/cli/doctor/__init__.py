"""Commands that check their input: doctor, doctor stack, drill, migrate.

In: files or text. Out: findings as text or JSON. Never here: logic.
"""
