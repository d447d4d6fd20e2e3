"""The attack: what strangers may send, sent to a server of one's own on 127.0.0.1. `make attack` runs all of it.

visitor    a visitor without a browser: Streamlit's protocol written by hand, so that any message can be sent
damaged    checkpoints, imports, traces, model folders and GGUF files with something wrong: refused with a sentence, or read
strangers  odd links, values that no widget sends, and many visitors at once, each with secrets that no other may see
"""
