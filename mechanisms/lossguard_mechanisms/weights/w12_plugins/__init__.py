"""W12 in other people's engines: transformers, vLLM and SGLang load it through their own registration (docs/w12.md)."""
