"""Descriptions of the weighting rules, one file per kind; no numerical library is imported here."""
