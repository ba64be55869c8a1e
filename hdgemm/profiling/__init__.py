"""Which shared resource holds the machine back."""
