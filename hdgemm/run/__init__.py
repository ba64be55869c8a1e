"""The engine: from a product to its report, on one device or several."""
