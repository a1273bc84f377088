"""Options and ini settings as one frozen value. The command line wins over the ini file."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lossguard_pytest
from lossguard.pytest_plugin.problems import bad_setting

DEFAULT_BASELINES = ".lossguard-baselines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What this session was asked to do. Paths are absolute or relative to the current folder."""

    baseline: str | None
    candidate: str | None
    config: Path | None
    update: str
    allow_ci_update: bool
    live: bool
    require: Path | None
    budget: str
    devices: str
    advisory: bool
    json: Path | None
    html: Path | None
    seed: int | None
    temperature: float | None
    strict: bool
    explain: bool
    baselines_dir: Path
    asked_to_judge: bool

    @property
    def is_recording(self) -> bool:
        """Whether this session records baselines instead of judging."""
        return self.update != "none"

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read and check options and ini settings. Raises UsageError LG0810."""
        given = {
            name: _value(config, name, kind)
            for name, metavar, kind, _ in lossguard_pytest.OPTIONS
            if metavar and name not in lossguard_pytest.COMMAND_LINE_ONLY
        }
        seed, temperature = given["seed"], given["temperature"]
        return cls(
            baseline=given["baseline"],
            candidate=given["candidate"],
            config=_path(config, "config"),
            update=config.getoption("lossguard_update") or "none",
            allow_ci_update=bool(config.getoption("lossguard_allow_ci_update")),
            live=bool(config.getoption("lossguard_live")),
            require=_path(config, "require"),
            budget=given["budget"] or "standard",
            devices=given["devices"] or "auto",
            advisory=bool(config.getoption("lossguard_advisory")),
            json=_path(config, "json"),
            html=_path(config, "html"),
            seed=None if seed is None else int(seed),
            temperature=None if temperature is None else float(temperature),
            strict=bool(config.getoption("lossguard_strict")),
            explain=bool(config.getoption("lossguard_explain")),
            baselines_dir=_path(config, "baselines-dir") or config.rootpath / DEFAULT_BASELINES,
            asked_to_judge=_is_on_command_line(config, "--lossguard-baseline"),
        )


def _value(config: pytest.Config, name: str, kind: Any) -> str | None:
    dest = f"lossguard_{name.replace('-', '_')}"
    option: str | None = config.getoption(dest)
    if option is not None:
        return option
    setting = config.getini(dest)
    if not setting:
        return None
    try:
        return str(kind(str(setting)))
    except argparse.ArgumentTypeError as error:
        raise bad_setting(dest, str(error)) from error


def _path(config: pytest.Config, name: str) -> Path | None:
    """A path of the command line starts at the current folder, one of the ini file at the ini file's folder."""
    dest = f"lossguard_{name.replace('-', '_')}"
    option: str | None = config.getoption(dest)
    if option is not None:
        return config.invocation_params.dir / option
    setting = config.getini(dest)
    return (config.inipath.parent if config.inipath else config.rootpath) / str(setting) if setting else None


def _is_on_command_line(config: pytest.Config, flag: str) -> bool:
    """Whether the user typed the flag, as opposed to an ini file's addopts."""
    return any(re.fullmatch(rf"{flag}(=.*)?", str(argument), re.DOTALL) for argument in config.invocation_params.args)
