"""An endpoint file with its API type, validated as far as every call needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis import api_types
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.handlers.base.backend_call import BackendSettings
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT


@dataclass(frozen=True)
class EndpointFile:
    """The content of ``Endpoints/<name>.json`` and of its ApiTypes file.

    Attributes:
        type: the canonical back-end dialect, see ``api_types``.
    """

    name: str
    # Excluded from repr because it contains the key.
    config: Mapping[str, object] = field(repr=False)
    api_type: Mapping[str, object]
    type: str

    @staticmethod
    def load(name: str) -> EndpointFile:
        """Read both files. Raises ConfigurationError with the file and key of a mistake."""
        config = config_utils.load_endpoint(name)
        api_type_name = str(ENDPOINT.value(config, "apiTypeConfigFileName") or "")
        if not api_type_name.strip():
            raise mistake(
                name, "the endpoint names no API type", "apiTypeConfigFileName", "the name of a file in ApiTypes"
            )
        api_type = config_utils.load_api_type(api_type_name)
        return EndpointFile(
            name, config, api_type, api_types.canonical_type(api_type, f"ApiTypes/{api_type_name}.json")
        )

    @property
    def url(self) -> str:
        """The base URL. Raises ConfigValueError if the endpoint has none."""
        url = str(ENDPOINT.value(self.config, "endpoint") or "").strip()
        if not url.lower().startswith(("http://", "https://")):
            raise mistake(
                self.name, "the endpoint has no usable URL", "endpoint", "a URL such as http://127.0.0.1:5001"
            )
        return url

    def settings(self, samplers: Mapping[str, object]) -> BackendSettings:
        """Return the settings for a back-end handler. ``samplers`` are final payload fields."""
        config, file = self.config, endpoint_path(self.name)
        model = None if ENDPOINT.flag(config, "dontIncludeModel") else api_types.model_name(config)
        return BackendSettings(
            endpoint_name=self.name,
            base_url=self.url,
            file=file,
            endpoint=config,
            api_type=self.api_type,
            samplers=samplers,
            model=model,
            api_key=resolve_api_key(ENDPOINT.value(config, "apiKey"), file),
            connect_timeout=config_utils.user_int("connectTimeoutInSeconds"),
        )


def mistake(name: str, message: str, key: str, expected: str) -> ConfigValueError:
    """Return an error about ``key`` of the file of endpoint ``name``."""
    return ConfigValueError(message, file=endpoint_path(name), json_path=key, expected=expected)


def endpoint_path(name: str) -> str:
    """Return the path of an endpoint's file for error messages, relative to the config root."""
    folder = config_utils.user_name_setting("endpointConfigsSubDirectory")
    return "/".join(filter(None, ("Endpoints", folder, f"{name}.json")))
