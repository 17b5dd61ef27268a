"""What exists: endpoints, the pool they form, and how they are discovered."""
