"""What a check says: findings with evidence, and what could not be looked at."""

from gradwatch.finding.finding import Evidence, Finding, Severity, Skipped

__all__ = ["Evidence", "Finding", "Severity", "Skipped"]
