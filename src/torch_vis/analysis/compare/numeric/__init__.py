"""Where the numbers of two runs begin to differ, and why."""
