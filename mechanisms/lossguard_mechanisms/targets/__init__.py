"""Target models: a decoder with Gated DeltaNet and gated attention layers, and the plain Llama and Qwen3 kind.

``config`` reads and writes Hugging Face configs, ``weights`` their weights, ``decoder`` is the model. All that sees
more than one row of a step goes through ``mixing.Mixing``; ``stateful`` is the kind with slots, ``fresh`` the one for
training, ``naive`` the slow reference.
"""
