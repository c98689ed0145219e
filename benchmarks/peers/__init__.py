"""Other watchers and diagnosers, beside ours: what they cost and what they find."""
