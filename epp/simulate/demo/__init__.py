"""`make demo`: the whole chain on one machine, three policies side by side."""
