"""Authentication and authorization of the HTTP API: tokens, users, sessions, proxies, TLS.

In: a request. Out: the caller and its role, or a refusal. Never here: what an endpoint answers.
"""
