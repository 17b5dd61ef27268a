"""Each module is one command that prints JSON lines; `make bench` runs them all."""
