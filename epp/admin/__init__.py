"""What an operator asks: the admin port with `/status`, the metrics port, and the commands that read them."""
