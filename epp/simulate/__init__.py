"""Workers and traffic without GPUs."""
