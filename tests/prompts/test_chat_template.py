"""Chat templates render as transformers renders them: those of models, and ours for every construct that such use."""

import itertools
import json
import os
import subprocess
import venv
from functools import cache
from pathlib import Path

import jinja2
import pytest

from epp.prompts.chat_template import ChatTemplate, RenderError

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
REFERENCE = Path(__file__).with_name("transformers_reference.py")
TRANSFORMERS = "transformers==5.24.0"
PUBLISHED = "trl==1.16.0"
"""Ships the templates of some forty models, under Apache-2.0; installed alone, as only its files are read."""
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": [1, 2.5], "a": "é", "c": None}}}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "Hi {{ x }} {% y %}"}],
    "turns": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": " three \n"},
    ],
    "continued": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "and then "}],
    "tools": [
        {"role": "user", "content": "1+2?", "name": "ann"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": '{"x": 1}', "tool_call_id": "c2"},
    ],
    "reasoning": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "\ntwo", "reasoning": "hm\n", "reasoning_content": "hm\n"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
        {"role": "assistant", "content": "<think>\nso\n</think>\nthree"},
    ],
    "parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}]},
    ],
    "roles": [
        {"role": "developer", "content": "dev"},
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "skip"},
        {"role": "user", "content": "日本語 \u2028 🙂"},
    ],
}
TOOL = {"type": "function", "function": {"name": "add", "description": None, "parameters": {"z": 1, "a": {"b": [1.0]}}}}
DOCUMENTS = [{"title": "T", "text": "line\nline"}, {"title": "Ü", "text": ""}]
VARIABLES = [
    {},
    {"enable_thinking": False, "reasoning_effort": "low", "custom": {"k": "é"}, "bos_token": "<other>"},
]


def cases(folder):
    """Every template with every conversation, with and without tools, documents, variables, and both ends."""
    ends = [(True, False), (False, False), (False, True)]
    for path, (name, messages) in itertools.product(sorted(folder.glob("*.jinja")), CONVERSATIONS.items()):
        for (generation, final), extras in itertools.product(ends, (False, True)):
            yield {
                "name": f"{path.stem}-{name}-{'generation' if generation else 'continue' if final else 'end'}-{extras}",
                "template": path.read_text(encoding="utf-8"),
                "special_tokens": SPECIAL_TOKENS,
                "messages": messages,
                "tools": [TOOL] if extras else None,
                "documents": DOCUMENTS if extras else None,
                "variables": VARIABLES[extras],
                "add_generation_prompt": generation,
                "continue_final_message": final,
            }


@cache
def compiled(text):
    return ChatTemplate(text, SPECIAL_TOKENS)


def render(case):
    template = compiled(case["template"])
    return template.render(
        json.loads(json.dumps(case["messages"])),
        tools=case["tools"],
        documents=case["documents"],
        variables=case["variables"],
        add_generation_prompt=case["add_generation_prompt"],
        continue_final_message=case["continue_final_message"],
    )


def rendered_or_none(case):
    try:
        return render(case)
    except RenderError:
        return None


@pytest.fixture(scope="module")
def transformers_python():
    """A Python with transformers and published templates in an environment of its own, made once and kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp"
    directory = cache / "-".join((TRANSFORMERS, PUBLISHED)).replace("==", "-")
    python = directory / "bin" / "python"
    if (directory / "complete").exists():
        return python
    venv.create(directory, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for packages in ([TRANSFORMERS, "jinja2"], ["--no-deps", PUBLISHED]):
        result = subprocess.run([*install, *packages], capture_output=True, text=True, timeout=600, check=False)
        if result.returncode:
            if os.environ.get("CI") == "true":
                pytest.fail(result.stderr)
            pytest.skip(f"{packages} cannot be installed: {result.stderr.strip()[-200:]}")
    (directory / "complete").touch()
    return python


def assert_as_in_transformers(python, everything):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    result = subprocess.run(
        [str(python), "-I", str(REFERENCE)],
        input=json.dumps(everything),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=environment,
    )
    rendered = json.loads(result.stdout)
    assert sum("text" in reference for reference in rendered) > len(everything) / 2
    for case, reference in zip(everything, rendered, strict=True):
        assert rendered_or_none(case) == reference.get("text"), f"{case['name']}: {reference}"


@pytest.mark.timeout(900)
def test_every_construct_renders_as_in_transformers(transformers_python):
    assert_as_in_transformers(transformers_python, list(cases(TEMPLATES)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_published_templates_render_as_in_transformers(transformers_python):
    """Llama, Qwen, Gemma, DeepSeek, GLM, Cohere, Phi, gpt-oss, Nemotron, LFM and more, as their authors wrote them."""
    (folder,) = transformers_python.parents[1].glob("lib/python*/site-packages/trl/chat_templates")
    everything = list(cases(folder))
    assert len({case["name"].split("-")[0] for case in everything}) > 60
    assert_as_in_transformers(transformers_python, everything)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("parts", True), ("tools", False), ("thinking", False), ("alternating", False), ("turns_with_dates", False)],
)
def test_the_content_format_is_what_the_template_loops_over(name, parts):
    assert ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), {}).reads_parts is parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", True),
        ("{% set ms = messages[1:] %}{% for m in ms %}{% for c in m.content | list %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m.parts %}{% endfor %}{% endfor %}", False),
        ("{% for m in other %}{% for c in m.content %}{% endfor %}{% endfor %}", False),
        ("{% set a = b %}{% set b = a %}{% for m in messages %}{{ m.content }}{% endfor %}", False),
    ],
)
def test_the_content_format_follows_plain_assignments(text, parts):
    assert ChatTemplate(text, {}).reads_parts is parts


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(_x=1) }}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ range(10 ** 9) | list }}",
        "{{ undefined_function() }}",
        "{{ messages[0].content + 1 }}",
        "{{ raise_exception('no') }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_what_the_sandbox_forbids_is_refused_or_empty(text):
    case = {"template": text, "messages": CONVERSATIONS["one"]}
    nothing = dict.fromkeys(("tools", "documents")) | {"variables": {}}
    ends = {"add_generation_prompt": True, "continue_final_message": False}
    assert not rendered_or_none(case | nothing | ends)


@pytest.mark.parametrize("text", ["{% for %}", "{{ ", "{% unknown %}", "{% generation %}"])
def test_a_text_that_is_no_template_is_refused(text):
    with pytest.raises(jinja2.TemplateError):
        ChatTemplate(text, {})
