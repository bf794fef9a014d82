"""Recording calls of modules alone, without their operations."""
