"""NVIDIA AICR: its constraints, its recipes, and its contract for check images."""
