"""Whether the tokenizer that the settings name is there and can be used."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from epp.admin.doctor.finding import Finding, error, warning
from epp.prompts.reader import PromptReader
from epp.settings import Settings, SettingsError

FIX = "name a folder with the model's tokenizer.json and chat template, mounted where `epp serve` runs"


def tokenizer_findings(settings: Settings) -> list[Finding]:
    """What is wrong with the way to token ids; loads the tokenizer, as `epp serve` does."""
    sources = (settings.tokenizer_path, settings.tokenizer, settings.models_file, settings.render_url)
    if not any(sources):
        what = "no tokenizer: prefixes are compared as text, and what engines say of their caches is not used"
        return [warning("EPP_TOKENIZER_PATH", what, FIX)]
    try:
        reader = PromptReader.from_settings(settings, CollectorRegistry())
    except SettingsError as problem:
        name, _, text = str(problem).partition(": ")
        return [error(name, text, FIX)]
    try:
        return list(_of_models(reader))
    finally:
        reader.close()


def _of_models(reader: PromptReader) -> Iterator[Finding]:
    for model in reader.status().models:
        where = f"tokenizer of {' '.join(model.names) or 'all models'}"
        if model.problem:
            yield error(where, model.problem, FIX)
        elif not model.chat_template:
            what = f"{model.origin} has no chat template: chats are compared as text"
            yield warning(
                where, what, "name one in EPP_CHAT_TEMPLATE, or put chat_template.jinja beside tokenizer.json"
            )
