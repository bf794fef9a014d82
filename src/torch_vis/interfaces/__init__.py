"""The documented interfaces, each thin: it translates its arguments, calls the core and reshapes the answer."""
