"""Task-superscalar runtime: serial code inserts tasks, their data accesses order them."""
