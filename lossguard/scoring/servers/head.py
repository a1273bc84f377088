"""In what precision a server makes its logits, and how that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lossguard.engines.servers.options import ServerOptions

HEAD_DTYPE = re.compile(r"head_dtype\W+(?:torch\.)?float32")
FLOAT32 = ('"float32"', '"float"', '"torch.float32"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """``is_float32`` decides; ``reason`` is shown, and ``fix`` says how to have one."""

    is_float32: bool
    reason: str
    fix: str


def sglang_head(options: ServerOptions, told: Mapping[str, str]) -> Head:
    """``--enable-fp32-lm-head``, or a model that runs in float32 altogether."""
    fix = "launch it with --enable-fp32-lm-head"
    flag, dtype = told.get("/server_info enable_fp32_lm_head"), told.get("/server_info dtype")
    if flag == "true":
        return Head(is_float32=True, reason="/server_info says enable_fp32_lm_head", fix=fix)
    if dtype in FLOAT32:
        return Head(is_float32=True, reason=f"/server_info says dtype {dtype}", fix=fix)
    if dtype in (None, '"auto"') and options.logit_dtype == "float32":
        return Head(is_float32=True, reason=options.reasons[0], fix=fix)
    return Head(is_float32=False, reason=f"/server_info says enable_fp32_lm_head {flag}, dtype {dtype}", fix=fix)


def vllm_head(options: ServerOptions) -> Head:
    """``--dtype float32``, or a head of its own dtype."""
    fix = 'launch it with --dtype float32 or --hf-overrides \'{"head_dtype": "float32"}\''
    fix += ', and for a server behind a url set logit_dtype = "float32"'
    command = options.launch if isinstance(options.launch, str) else " ".join(options.launch or ())
    if HEAD_DTYPE.search(command):
        return Head(is_float32=True, reason="head_dtype float32 in the launch command", fix=fix)
    return Head(is_float32=options.logit_dtype == "float32", reason=options.reasons[0], fix=fix)
