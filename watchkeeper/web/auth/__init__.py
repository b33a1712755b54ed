"""Authentication and authorization of the HTTP API: tokens, users, sessions, proxies, TLS.

Comes in: a request. Goes out: who asks and what they may do, or a refusal. Never here: what an endpoint answers.
"""
