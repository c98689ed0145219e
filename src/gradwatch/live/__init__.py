"""Joins recording and diagnosis: `watch` lives here."""
