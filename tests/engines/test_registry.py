"""Finding engines by kind."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from lossguard.engines import registry
from lossguard.errors import UsageError


def offer(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    entries = tuple(
        EntryPoint(name=name, value=value, group=registry.ENTRY_POINT_GROUP) for name, value in targets.items()
    )
    monkeypatch.setattr(registry, "_installed_entries", lambda: entries)


def test_built_in_kinds_need_no_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    assert registry.engine_kinds() == ("callable", "llamacpp", "openai", "sglang", "transformers", "vllm")
    assert registry.engine_factory("transformers").__module__ == "lossguard.engines.transformers_engine"


def test_an_unknown_kind_names_the_near_miss() -> None:
    with pytest.raises(UsageError, match="Did you mean 'transformers'") as caught:
        registry.engine_factory("transfomers")
    assert caught.value.code == "LG0201"


def test_an_entry_point_adds_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine="lossguard.engines.callable_engine:create")
    assert registry.engine_factory("mine").__name__ == "create"


def test_an_entry_point_does_not_replace_a_built_in_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, transformers="json:loads")
    assert registry.engine_factory("transformers").__module__ == "lossguard.engines.transformers_engine"


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("no", name="torch.nn")

    monkeypatch.setattr(registry, "import_module", fail)
    with pytest.raises(UsageError, match=r"pip install 'lossguard\[transformers\]'") as caught:
        registry.engine_factory("transformers")
    assert caught.value.code == "LG0202"
    assert "'torch'" in caught.value.found


def test_a_missing_package_of_a_foreign_engine_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine="a_package_that_is_not_there.engine:create")
    with pytest.raises(UsageError, match="install the package 'a_package_that_is_not_there'"):
        registry.engine_factory("mine")


def test_an_entry_point_without_its_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine="json:no_such_function")
    with pytest.raises(UsageError, match="not a function") as caught:
        registry.engine_factory("mine")
    assert caught.value.code == "LG0203"
