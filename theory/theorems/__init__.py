"""One file per theorem; files do not import each other."""
