"""What a training or serving program imports.

Comes in: what the program says about its own steps, requests and log records. Goes out: a page for Prometheus, files
or pushes, mirrors to its experiment tracker, and log records that say what its GPUs do. Never here: an import of the
rest of Watchkeeper or of a framework, a wait for the driver or the network in the program's own thread, or an error
in its loop.
"""
