"""Virtual time: machines as data, plans and pools executed on them."""
