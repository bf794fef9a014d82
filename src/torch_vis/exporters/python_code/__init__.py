"""A captured program as Python code that runs."""
