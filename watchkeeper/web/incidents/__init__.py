"""The incidents API: incidents, repairs, causes, the journal and evidence bundles.

In: requests. Out: typed answers. Never here: decisions; the services of the hub make them.
"""
