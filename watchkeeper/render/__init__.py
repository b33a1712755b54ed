"""Renders configuration files for other systems from the settings and packs.

In: settings and packs. Out: a tree of files, the same for the same input. Never here: a network call, or a
change to a system; a person or a deployment tool applies the files.
"""
