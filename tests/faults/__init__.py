"""The fault campaign: what can happen to a run on this machine, tried again and again. `make faults` runs all of it.

processes  workers and servers as the app starts them, killed, asked to end, stopped, or out of disk; then resumed and compared
server     a server without its pages: it starts runs and tends the run store until it is killed
ray        the same on a simulated Ray cluster, whose nodes and servers are killed; `python -m tests.faults.ray`
"""
