"""The client of a remote server with the Prometheus HTTP API and remote write.

In: settings of the server, requests, samples. Out: query results, alerts of the server's rules.
`query.prometheus` is the engine built from these parts. Never here: what a query or a rule means.
"""
