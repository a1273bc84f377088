"""The options that every server engine has, read from the system's table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lossguard.engines.base import EngineSpec
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown

NAMES = (
    "url",
    "launch",
    "port",
    "env",
    "devices",
    "health",
    "start_seconds",
    "stop_seconds",
    "model_name",
    "api_key_env",
    "concurrency",
    "stagger_seconds",
    "stream",
    "connect_seconds",
    "read_seconds",
    "request_seconds",
    "logit_dtype",
    "metrics",
    "logprobs",
)
LOGIT_DTYPES = ("float32", "bfloat16", "float16")
DTYPE_WORDS = {
    "float": "float32",
    "fp32": "float32",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    **{name: name for name in LOGIT_DTYPES},
}
DTYPE_ARGUMENT = re.compile(r"--dtype[ =]+([A-Za-z0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one request by phase, and of starting and stopping a server; seconds."""

    connect: float = 10.0
    read: float = 300.0  # without a byte
    request: float = 1_800.0  # from sending to the last byte
    start: float = 900.0
    stop: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """One server system as configured. Exactly one of ``url`` and ``launch`` is set."""

    url: str | None
    launch: tuple[str, ...] | str | None  # a list of words is taken as it is, a string is split as a shell would
    port: int | None
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    health: str | None = None
    model_name: str | None = None
    api_key_env: str | None = None
    concurrency: int = 8
    stagger: float = 0.0  # seconds between the first requests of a run, so that they do not begin in step
    stream: bool = True
    metrics: bool = True
    logprobs: int = 1  # top log-probabilities that test requests ask for
    timeouts: Timeouts = Timeouts()
    logit_dtype: str = "bfloat16"
    reasons: tuple[str, ...] = ()


def read_options(
    spec: EngineSpec, *, model_dtype: str, default_dtype: str | None = None, default_stream: bool = True
) -> ServerOptions:
    """Check and type a system's options. Raises UsageError LG0204.

    ``model_dtype`` is that of the model's config.json, ``default_dtype`` that of an engine whose logits have one of
    its own whatever the weights, ``default_stream`` whether its streams hold every id.
    """
    refuse_unknown(spec, NAMES)
    read = OptionReader(spec.name, spec.options)
    url, launch = _url(spec), _launch(spec)
    if (url is None) == (launch is None):
        raise bad_option(spec.name, "needs exactly one of url (attach) and launch (a command)")
    for key in ("port", "env", "devices", "stop_seconds"):
        if url is not None and key in spec.options:
            raise bad_option(spec.name, f"has {key}, which belongs to launch; a server behind a url is left alone")
    dtype, reason = _logit_dtype(read, launch, default_dtype or model_dtype)
    stream, why_stream = _stream(read, default=default_stream)
    return ServerOptions(
        url=url,
        launch=launch,
        port=read.optional_positive("port"),
        env=_env(spec),
        devices=_devices(spec),
        health=_path(read, "health"),
        model_name=read.optional_text("model_name"),
        api_key_env=read.optional_text("api_key_env"),
        concurrency=read.positive("concurrency", 8),
        stagger=_seconds(spec, "stagger_seconds", 0.0, allow_zero=True),
        stream=stream,
        metrics=read.flag("metrics", default=True),
        logprobs=_logprobs(spec),
        timeouts=Timeouts(
            connect=_seconds(spec, "connect_seconds", Timeouts().connect),
            read=_seconds(spec, "read_seconds", Timeouts().read),
            request=_seconds(spec, "request_seconds", Timeouts().request),
            start=_seconds(spec, "start_seconds", Timeouts().start),
            stop=_seconds(spec, "stop_seconds", Timeouts().stop),
        ),
        logit_dtype=dtype,
        reasons=(reason, why_stream),
    )


def _url(spec: EngineSpec) -> str | None:
    value = spec.options.get("url")
    if value is None:
        return None
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise bad_option(spec.name, f'has url = {value!r}, which should be like "http://127.0.0.1:30000"')
    if parts.username or parts.password:
        raise bad_option(spec.name, "has a password in its url; name the variable that holds the key as api_key_env")
    return str(value).rstrip("/").removesuffix("/v1")


def _launch(spec: EngineSpec) -> tuple[str, ...] | str | None:
    value = spec.options.get("launch")
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise bad_option(spec.name, f"has launch = {value!r}, which should be a command, as a string or a list of words")


def _env(spec: EngineSpec) -> dict[str, str]:
    value = spec.options.get("env", {})
    if not isinstance(value, Mapping) or not all(isinstance(item, (str, int)) for item in value.values()):
        raise bad_option(spec.name, f'has env = {value!r}, which should be a table such as {{ NAME = "value" }}')
    return {str(key): str(item) for key, item in value.items()}


def _devices(spec: EngineSpec) -> tuple[str, ...]:
    """``devices = 2`` are the first two, ``devices = [1, 3]`` are those."""
    value: Any = spec.options.get("devices", 0)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return tuple(str(index) for index in range(value))
    if isinstance(value, list) and value and all(isinstance(item, (int, str)) for item in value):
        return tuple(str(item) for item in value)
    raise bad_option(spec.name, f"has devices = {value!r}, which should be a number of devices or a list of them")


def _logprobs(spec: EngineSpec) -> int:
    value = spec.options.get("logprobs", 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 20:
        raise bad_option(spec.name, f"has logprobs = {value!r}, which should be a whole number from 0 to 20")
    return value


def _path(read: OptionReader, key: str) -> str | None:
    value = read.optional_text(key)
    if value is not None and not value.startswith("/"):
        raise bad_option(read.system, f"has {key} = {value!r}, which should be a path such as '/health'")
    return value


def _seconds(spec: EngineSpec, key: str, default: float, *, allow_zero: bool = False) -> float:
    value = spec.options.get(key, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf") or (value == 0 and not allow_zero):
        raise bad_option(spec.name, f"has {key} = {value!r}, which should be a number of seconds over 0")
    return float(value)


def _stream(read: OptionReader, *, default: bool) -> tuple[bool, str]:
    """Whether replies are streamed, and how that was chosen."""
    stream = read.flag("stream", default=default)
    if stream == default:
        why = "streams give arrival times" if default else "this server's streams leave ids out, whole replies do not"
    else:
        why = "as configured"
    return stream, f"stream = {str(stream).lower()}: {why}"


def _logit_dtype(read: OptionReader, launch: tuple[str, ...] | str | None, fallback: str) -> tuple[str, str]:
    """The dtype that sets the ULP part of delta, and how it was chosen."""
    given = read.optional_choice("logit_dtype", LOGIT_DTYPES)
    if given is not None:
        return given, f"logit_dtype = {given}, as configured"
    command = launch if isinstance(launch, str) else " ".join(launch or ())
    argument = DTYPE_ARGUMENT.search(command)
    if argument is not None and argument[1] in DTYPE_WORDS:
        return DTYPE_WORDS[argument[1]], f"logit_dtype = {DTYPE_WORDS[argument[1]]}, from --dtype of the launch command"
    if fallback not in LOGIT_DTYPES:
        raise bad_option(read.system, f"serves a model in {fallback!r}: set logit_dtype to one of {LOGIT_DTYPES}")
    return fallback, f"logit_dtype = {fallback}, that of the model's config.json or of the engine"
