"""Settings: one TOML file in, one frozen dataclass out.

In: a file and command-line overrides. Out: `Settings`, or a SettingsError that names every problem with its file and
dotted key. Never here: defaults that a stage decides itself, or I/O beyond that one file.
"""
