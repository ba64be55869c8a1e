"""Left-looking factorisations: slabs of whole columns that pass through memory."""
