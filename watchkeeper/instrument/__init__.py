"""What a training or serving program imports.

Comes in: the program's own log records. Goes out: the same records, with what its GPUs do. Never here: an import of the
rest of Watchkeeper, a thread, a wait for the driver, or an error that the program would have to handle.
"""
