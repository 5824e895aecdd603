"""The cluster and the user that a kubeconfig's context names.

The official client reads the files, and every way to log in but two: it never asks an exec plugin or an OpenID provider
again, waits for a plugin for ever, and goes on without a login where there is none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config import kube_config as _untyped

from coach.core.errors import PermanentError, TemporaryError, UserError
from coach.platforms.kubernetes_api import exec_plugin, openid
from coach.platforms.kubernetes_api.credentials import FILE_SECONDS, PAUSE_SECONDS, Credential, due

log = logging.getLogger(__name__)

_kube_config: Any = _untyped


@dataclass(frozen=True, slots=True)
class _Login:
    """What the files say of a context now; `folder` is that of the file with its user.

    `plugin` is the user's `exec`, `openid` its provider's settings. `others` reads the rest.
    """

    user: str
    file: Path
    cluster: dict[str, Any]
    plugin: dict[str, Any] | None
    openid: dict[str, str] | None
    rotates: bool
    others: Any

    @classmethod
    def read(cls, files: str, context: str) -> Self:
        """Raises ConfigException, OSError, YAMLError."""
        merged = _kube_config.KubeConfigMerger(files).config
        named = merged["contexts"].get_with_name(context)["context"]
        cluster = merged["clusters"].get_with_name(named["cluster"])["cluster"].value
        name = str(named.safe_get("user") or "")
        entry = merged["users"].get_with_name(name, safe=True) if merged.safe_get("users") else None
        user = (entry.value.get("user") or {}) if entry is not None else {}
        plugin, settings = user.pop("exec", None), None
        if (user.get("auth-provider") or {}).get("name") == "oidc":
            settings = user.pop("auth-provider").get("config") or {}
        loader = _kube_config.KubeConfigLoader(merged, active_context=context, config_base_path=None)
        file = Path(entry.path if entry is not None else files)
        return cls(name, file, cluster, plugin, settings, "tokenFile" in user, loader)


class Kubeconfig:
    """A context of the files of KUBECONFIG, read again each time: who logs in anew writes them.

    `who` describes its user, once `cluster` was called: `user u of context c (exec plugin aws)`.
    """

    def __init__(self, context: str | None = None, now: Callable[[], float] = time.time) -> None:
        """`context`: None is the current one. Raises UserError, PermanentError, ConfigException, YAMLError."""
        file = os.environ.get("KUBECONFIG") or "~/.kube/config"
        paths = [Path(path).expanduser() for path in file.split(os.pathsep) if path]
        if not any(path.exists() for path in paths):
            raise PermanentError(
                f"no cluster: there is no {' nor '.join(map(str, paths))}; set KUBECONFIG to a kubeconfig file"
            )
        self._files = os.pathsep.join(map(str, paths))
        merged = _kube_config.KubeConfigMerger(self._files).config
        names = sorted(one["name"] for one in merged["contexts"].value)
        if context and context not in names:
            raise UserError(f"--context {context}: no such context; the kubeconfig has: {', '.join(names) or 'none'}")
        self.context = str(context or merged["current-context"])
        named = merged["contexts"].get_with_name(self.context)["context"]
        self.namespace = str(named.safe_get("namespace") or "default")
        self._now = now
        #: The OpenID settings as the file had them, and as they are since, where the file could not be written.
        self._in_file: dict[str, str] = {}
        self._settings: dict[str, str] = {}
        self._id_token = ""

    async def cluster(self) -> Configuration:
        """Everything about the cluster. Raises ConfigException."""
        login, means, configuration = _Login.read(self._files, self.context), "", Configuration()
        if login.plugin is not None:
            means = f" (exec plugin {login.plugin.get('command')})"
        elif login.openid is not None:
            means = f" (OpenID Connect, issuer {login.openid.get('idp-issuer-url')})"
        self.who = f"user {login.user} of context {self.context}{means}"
        await login.others.load_and_set(configuration)
        return configuration

    async def read(self, *, interactive: bool = False) -> Credential:
        """`interactive`: a plugin may ask the user at the terminal. Raises TemporaryError."""
        try:
            login = _Login.read(self._files, self.context)
            if login.openid is not None:
                return await self._of_openid(login)
            configuration = Configuration()
            await login.others.load_and_set(configuration)
            given = self._of_files(configuration, rotates=login.rotates)
            if login.plugin is None:
                return given
            status = await exec_plugin.run(login.plugin, login.cluster, login.file.parent, interactive=interactive)
        except (ConfigException, OSError, yaml.YAMLError, ValueError) as error:
            raise TemporaryError(f"{self._files}: {error}") from error
        return self._of_plugin(status, given)

    def _of_files(self, configuration: Configuration, *, rotates: bool) -> Credential:
        certificate = None
        if configuration.cert_file and configuration.key_file:
            certificate = Path(configuration.cert_file).read_text(), Path(configuration.key_file).read_text()
        read_again = self._now() + FILE_SECONDS if rotates else None
        return Credential(configuration.api_key.get("BearerToken"), certificate, due=read_again)

    def _of_plugin(self, status: dict[str, Any], given: Credential) -> Credential:
        token, certificate, ends = status.get("token"), given.certificate, None
        if status.get("clientCertificateData"):
            certificate = status["clientCertificateData"], status["clientKeyData"]
        with contextlib.suppress(KeyError, ValueError, TypeError):
            ends = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
        return Credential(f"Bearer {token}" if token else None, certificate, ends, due(ends, self._now()))

    async def _of_openid(self, login: _Login) -> Credential:
        """The id-token of the file where it is another than the last, else a new one of the issuer's."""
        found = {name: str(value) for name, value in (login.openid or {}).items()}
        if found != self._in_file:
            self._in_file = self._settings = found
        token = self._settings.get("id-token", "")
        ends = openid.ends(token)
        if not token or token == self._id_token or (ends is not None and ends < self._now() + PAUSE_SECONDS):
            self._settings = await openid.refreshed(self._settings, login.file.parent)
            token = self._settings["id-token"]
            ends = openid.ends(token)
            self._save(login, self._settings)
        self._id_token = token
        return Credential(f"Bearer {token}", None, ends, due(ends, self._now()))

    def _save(self, login: _Login, settings: dict[str, str]) -> None:
        """Write the new tokens, as kubectl does: an issuer may take a refresh-token once only."""
        path = login.file.resolve()
        lock, half = path.with_name(f"{path.name}.lock"), path.with_name(f".{path.name}.coach")
        try:
            lock.open("x").close()  # kubectl's lock
            try:
                document = yaml.safe_load(path.read_text())
                (user,) = (one["user"] for one in document["users"] if one["name"] == login.user)
                user["auth-provider"]["config"] |= settings
                half.touch(0o600)
                half.write_text(yaml.safe_dump(document, sort_keys=False))
                half.chmod(path.stat().st_mode & 0o777)
                half.replace(path)
            finally:
                lock.unlink()
        except (OSError, ValueError, LookupError) as error:
            log.warning("%s: the new tokens of user %s cannot be written: %s", path, login.user, error)
