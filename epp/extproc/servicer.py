"""The path of a request: receive, understand, pick, answer, watch the response, release."""
