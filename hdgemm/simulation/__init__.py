"""Virtual time: machines as frozen data, and executors that run plans and pools on them."""
