"""What other replicas and processes know: the load of their picks, and a snapshot of their index."""
