"""The terminal explorer: a tree of modules as flat columns, and a Textual program that shows it."""
