"""Speed beside that of peers, in one process and in turns; with `engines`, the only place that may import a peer."""
