"""Real cache code of released engines against our index; `make test-engines`."""
