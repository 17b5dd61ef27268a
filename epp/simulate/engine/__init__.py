"""A simulated worker: an OpenAI-compatible server whose block cache decides how long prefill takes.

It shares no code with the picker's own prompts, hashes or index, so the two can disagree, and tests can see it.
"""
