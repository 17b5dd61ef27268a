"""What a policy would have done to the time to first token of a recorded workload."""
