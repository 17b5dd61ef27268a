"""`epp doctor`: what is wrong, from the settings to the flags of the engines, and how to mend it."""
