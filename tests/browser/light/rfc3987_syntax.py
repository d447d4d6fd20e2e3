"""In place of a package of JupyterLab's: altair imports it where it is there, which takes two seconds, and never uses it."""

raise ImportError("the servers of the tests go without it")
