"""EPP_CONFIG_FILE: rules with parameters, a profile for each role."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from epp.endpoints.endpoint import Role
from epp.settings import SettingsError

_MOST_BYTES = 1024 * 1024


class RuleConfig(BaseModel):
    """One filter or picker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class ScorerConfig(RuleConfig):
    """One scorer and how much it counts."""

    weight: float = Field(1.0, ge=0, le=1000)


class Profile(BaseModel):
    """How an endpoint is picked for one role: a policy by name, or scorers and a picker; filters come first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str | None = None
    filters: tuple[RuleConfig, ...] = ()
    scorers: tuple[ScorerConfig, ...] = ()
    picker: RuleConfig | None = None


class Config(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profiles: dict[Role, Profile]
    shadow: Profile | None = None
    """Decides on the side for the decode role, in place of EPP_SHADOW_POLICY."""


def read_config(path: Path) -> Config:
    """The profiles in a YAML or JSON file.

    Raises SettingsError that names the file, the field and what was expected.
    """
    try:
        text = path.read_bytes()
        if len(text) > _MOST_BYTES:
            raise SettingsError(f"EPP_CONFIG_FILE={path}: larger than {_MOST_BYTES} bytes")
        return Config.model_validate(yaml.safe_load(text))
    except OSError as error:
        raise SettingsError(f"EPP_CONFIG_FILE={path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"EPP_CONFIG_FILE={path}: {error}") from None
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc'])) or 'the file'}: {each['msg']}" for each in error.errors())
        raise SettingsError(f"EPP_CONFIG_FILE={path}: {'; '.join(problems)}") from None
