"""The incidents API: incidents, repairs, causes, the journal and evidence bundles.

Comes in: requests. Goes out: typed answers. Never here: a decision; it asks the services.
"""
