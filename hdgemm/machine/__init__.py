"""Memory limits, measured rates, and the cache that keeps them."""
