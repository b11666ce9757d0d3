"""One batch after it was accepted: poll it, isolate refused records, collect and join its answers."""
