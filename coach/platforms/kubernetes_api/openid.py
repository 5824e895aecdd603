"""Renew the id-token of a kubeconfig whose user logs in by OpenID Connect (`auth-provider: oidc`)."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import aiohttp

from coach.core.errors import TemporaryError

#: Seconds that the issuer may take.
ISSUER_SECONDS = 30.0


def ends(token: str) -> float | None:
    """When an id-token (a JWT) ends, in seconds since 1970; None where it does not say."""
    try:
        part = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"]
        return float(found)
    except (IndexError, ValueError, KeyError, TypeError):
        return None


async def refreshed(settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`settings` (the provider's `config`) with a new id-token, and a new refresh-token where the issuer gives one.

    `folder` is the kubeconfig's. Raises TemporaryError.
    """
    issuer = settings.get("idp-issuer-url", "").rstrip("/")
    if not settings.get("refresh-token"):
        raise TemporaryError(f"the id-token of issuer {issuer} has ended, and there is no refresh-token")
    client, secret = settings.get("client-id", ""), settings.get("client-secret", "")
    form = {"grant_type": "refresh_token", "refresh_token": settings["refresh-token"]}
    timeout = aiohttp.ClientTimeout(total=ISSUER_SECONDS)
    try:
        connector = aiohttp.TCPConnector(ssl=_trusted(settings, folder))
        async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=timeout) as session:
            async with session.get(f"{issuer}/.well-known/openid-configuration") as answer:
                answer.raise_for_status()
                known = await answer.json(content_type=None)
            methods = known.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            basic = bool(secret) and "client_secret_basic" in methods
            if not basic:
                form |= {"client_id": client} | ({"client_secret": secret} if secret else {})
            headers = {"Authorization": f"Basic {_basic(client, secret)}"} if basic else {}
            async with session.post(known["token_endpoint"], data=form, headers=headers) as answer:
                given: dict[str, Any] = await answer.json(content_type=None)
                if "id_token" not in given:
                    words = given.get("error_description") or given.get("error") or f"HTTP {answer.status}"
                    raise TemporaryError(f"issuer {issuer} gives no new id-token: {words}")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, AttributeError) as error:
        raise TemporaryError(f"issuer {issuer}: {error or type(error).__name__}") from error
    renewed = {"id-token": given["id_token"]}
    if given.get("refresh_token"):
        renewed["refresh-token"] = given["refresh_token"]
    return {**settings, **renewed}


def _basic(client: str, secret: str) -> str:
    """RFC 6749, section 2.3.1."""
    return base64.b64encode(f"{quote_plus(client)}:{quote_plus(secret)}".encode()).decode()


def _trusted(settings: Mapping[str, str], folder: Path) -> ssl.SSLContext:
    file, data = settings.get("idp-certificate-authority"), settings.get("idp-certificate-authority-data")
    return ssl.create_default_context(
        cafile=folder / file if file and not data else None,
        cadata=base64.b64decode(data).decode() if data else None,
    )
