"""Tables for the terminal and Markdown."""
