"""What a request asks to be computed: API parsing, chat template, tokens."""
