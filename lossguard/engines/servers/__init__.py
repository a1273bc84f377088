"""Engines that are servers: SGLang, vLLM, llama.cpp, and anything that speaks OpenAI's completions."""
