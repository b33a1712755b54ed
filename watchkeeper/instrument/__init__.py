"""What a training or serving program imports.

In: what the program reports about its steps, requests and log records. Out: a page for Prometheus, files or pushes,
metrics in its experiment tracker, and GPU states in its log records. Never here: an import of the rest of Watchkeeper
or of a framework, a wait for the driver or the network in the program's own thread, or an error raised in its loop.
"""
