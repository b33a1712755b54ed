"""The hub process: its services, the loops that run them, and the wiring between the stages.

In: settings. Out: a running hub that `web` serves. Never here: decisions of a stage.
"""
