"""The checks of a snapshot, one file for each link of the chain."""
