"""Which endpoint: candidates, policies, load and reservations."""
