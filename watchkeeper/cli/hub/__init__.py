"""Commands that run a hub or work on its files: up, hub, sim, rules, query, store, render.

Comes in: options. Goes out: text or JSON. Never here: logic.
"""
