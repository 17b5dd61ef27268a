"""Results for people (a table) and for machines (CTRF, JUnit)."""
