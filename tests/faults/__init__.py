"""Fault injection: runs are disturbed in many ways, resumed, and compared with undisturbed runs. `make faults` runs all trials.

processes  workers and servers as the app starts them: killed, terminated, stopped, or out of disk space
server     a server without pages, which starts runs and manages the run store until it is killed
ray        a simulated Ray cluster, whose nodes and servers are killed; `python -m tests.faults.ray`
"""
