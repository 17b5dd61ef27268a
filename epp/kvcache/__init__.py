"""What is cached where: prefix keys, event decoding, subscriber, index."""
