"""The library that the course stands on: a small LLaMA-style model, its training, its tokenizer, its workspace.

Students read it and import it; nobody needs to edit it to pass M13.
"""
