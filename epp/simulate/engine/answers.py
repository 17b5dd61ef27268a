"""What a simulated worker says: words that follow from the bytes of the request, so that a client can check them."""

import hashlib
import random

_TALK = """the file has one test that fails because line ten reads past end of list so we change its bound and run
all again then look at how much time each part takes before a new build can start from clean state with no cache"""
_WORDS = _TALK.split()


def answer_text(body: bytes, words: int) -> str:
    """`words` words that only this exact request body leads to."""
    chooser = random.Random(hashlib.sha256(body).digest())  # noqa: S311 - repeatable on purpose
    return " ".join(chooser.choices(_WORDS, k=words))


def is_answer(body: bytes, text: str) -> bool:
    """Whether `text` is how a worker that received exactly `body` begins its answer."""
    return bool(text) and answer_text(body, text.count(" ") + 2).startswith(text)
