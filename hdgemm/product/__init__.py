"""Arguments checked and turned into one immutable product."""
