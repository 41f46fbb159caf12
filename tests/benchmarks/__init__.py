"""Measurements. Run by ``make bench``; never part of a timed test."""
