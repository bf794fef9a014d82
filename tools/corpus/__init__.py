"""`python -m tools.corpus`: every model the installed libraries can build, traced and checked one by one."""
