"""Commands that run a hub or work on its files: up, hub, sim, rules, query, store, render.

In: options. Out: text or JSON. Never here: logic.
"""
