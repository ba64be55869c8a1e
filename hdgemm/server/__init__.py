"""The HTTP job service: calls the library, adds nothing to the mathematics."""
