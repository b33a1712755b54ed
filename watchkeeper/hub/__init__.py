"""The hub process: its services, the loops that run them, and the wiring between the stages.

In: settings. Out: a running hub that `web` serves. Never here: a decision that belongs to a stage.
"""
