"""Settings: one TOML file in, one frozen dataclass out.

Comes in: a file and command-line overrides. Goes out: `Settings`, or a SettingsError that names every
problem with its file and dotted key. Never here: defaults that a stage decides for itself, I/O beyond
that one file.
"""
