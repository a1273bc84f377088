"""The five kinds of generated prompts: word lists and templates, written for this project."""
