"""Attacks: everything that untrusted visitors can send, sent to a local server on 127.0.0.1. `make attack` runs all of them.

visitor    a client of Streamlit's protocol that needs no browser and can send any message
damaged    damaged checkpoints, imports, traces, model folders and GGUF files: each is read, or rejected in one sentence
strangers  odd links, values that no widget sends, and many visitors at once, each with secrets that no other may see
"""
