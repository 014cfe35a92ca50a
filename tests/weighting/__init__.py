"""Tests of the weighting rules."""
