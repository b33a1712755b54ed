"""Commands that judge what they are given: doctor, doctor stack, drill, migrate.

Comes in: files or text. Goes out: findings as text or JSON. Never here: logic.
"""
