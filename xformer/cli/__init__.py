"""The command line: `python -m xformer`. One file a command; what a person or a file wrote is said by `say` alone."""
