"""Watching a training: the heart-beat, the sentinel, the rows."""
