"""One attention over many ranks."""
