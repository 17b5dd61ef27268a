"""Several processes behind one port: one event loop decides on one core only."""
