"""Front-ends of the compiler side by side."""
