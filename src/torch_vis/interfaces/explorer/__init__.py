"""The module explorer: what it shows of models, traces and files."""
