"""``DLBacktrace``: tracing through torch.export for explanation."""
