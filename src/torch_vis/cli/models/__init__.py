"""What a command is about: a model, a trace, a file of weights."""
