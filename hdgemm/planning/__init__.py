"""Policy: pure functions from sizes and rates to a plan; touches no device."""
