"""The command line: `python -m xformer`. All printing goes through `output`, which escapes untrusted text."""
