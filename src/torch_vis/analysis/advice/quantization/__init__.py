"""Which weights can be stored in fewer bits."""
