"""All shipped knowledge as data; catalogue/, rules/ and sim/ read it."""
