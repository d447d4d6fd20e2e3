"""The attack: what strangers may send, sent to a server of one's own on 127.0.0.1. `make attack` runs all of it.

visitor    a visitor without a browser: Streamlit's protocol written by hand, so that any message can be sent
ground     a server with a temporary folder, tight limits, and how much memory and disk it takes
damaged    seeded mutants of checkpoints, imported files and traces: refused with a sentence, or read
links      odd links for every screen
forged     values that no widget sends, malformed messages, commands without an owner
crowd      twenty visitors at once, each with a secret in inputs, edits and uploads that no other may see
bounds     a small file that would take all memory, and texts that would fill the disk
kinds      all of it, in a short and in a long form
"""
