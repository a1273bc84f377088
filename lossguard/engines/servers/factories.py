"""The factories behind ``engine = "sglang"``, ``"vllm"``, ``"llamacpp"`` and ``"openai"``."""

from __future__ import annotations

from lossguard.engines.base import EngineSpec
from lossguard.engines.servers.llamacpp_dialect import LlamacppDialect
from lossguard.engines.servers.openai_dialect import OpenaiDialect
from lossguard.engines.servers.server_engine import ServerEngine, create_with
from lossguard.engines.servers.sglang_dialect import SglangDialect
from lossguard.engines.servers.vllm_dialect import VllmDialect


def create_sglang(spec: EngineSpec) -> ServerEngine:
    """SGLang by its native ``/generate``."""
    return create_with(SglangDialect(), spec)


def create_vllm(spec: EngineSpec) -> ServerEngine:
    """vLLM by ``/v1/completions`` with token ids."""
    return create_with(VllmDialect(), spec)


def create_llamacpp(spec: EngineSpec) -> ServerEngine:
    """llama-server by ``/completion``."""
    return create_with(LlamacppDialect(), spec)


def create_openai(spec: EngineSpec) -> ServerEngine:
    """Any server with OpenAI's ``/v1/completions``: text-level evidence, never a PASS."""
    return create_with(OpenaiDialect(spec.model_path), spec)
