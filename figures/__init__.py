"""Drawings of records: one script per figure, which reads records and computes nothing."""
