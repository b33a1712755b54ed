"""A typed HTTP client of the hub, for the command line and other programs.

In: a URL and a token. Out: dataclasses of model/ and `client.answers`. Never here: third-party packages.
"""
