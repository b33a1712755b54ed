"""Files for other people's systems, made from our one configuration and our packs.

Comes in: settings and packs. Goes out: a tree of files, the same for the same input. Never here: a network call, or a
change to a system; a person or their tool applies what was written.
"""
