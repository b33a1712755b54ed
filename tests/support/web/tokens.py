"""A token for each role."""

from __future__ import annotations

import hashlib

from watchkeeper.web.auth.auth import Auth, Role, Token

SECRETS = {role: f"{role}-".ljust(40, "x") for role in Role}
TOKENS = Auth(tuple(Token(role, role, hashlib.sha256(SECRETS[role].encode()).digest()) for role in Role))
