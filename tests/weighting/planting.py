"""Replace a library function everywhere it is held, for the length of one test."""

import sys


def plant(monkeypatch, original, replacement):
    """Replace a library function in every module that holds it."""
    places = [
        (module, name)
        for key, module in list(sys.modules.items())
        if key.startswith("testbed.")
        for name, value in list(vars(module).items())
        if value is original
    ]
    assert places
    for module, name in places:
        monkeypatch.setattr(module, name, replacement)
