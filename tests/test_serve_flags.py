"""The flags of GIE's lightweight picker stand for settings."""

import argparse

import pytest

from epp.serve_flags import add_flags, with_flags
from epp.settings import load_settings


def environ_of(*flags, **environ):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return with_flags(parser.parse_args(flags), environ)


def test_the_flags_of_the_conformance_manifests(capsys: pytest.CaptureFixture[str]):
    settings = load_settings(
        environ_of(
            *("--pool-name", "primary-inference-pool", "--pool-namespace", "inference-conformance-app-backend"),
            *("--zap-encoder", "json", "--grpc-port", "9102", "--grpc-health-port", "9103"),
            *("--v", "4", "--config-file", "/config/conformance-plugins.yaml"),
        )
    )
    assert "--config-file: a file of another picker's plugins, is not read" in capsys.readouterr().err
    assert settings.pool_name == "primary-inference-pool"
    assert settings.namespace == "inference-conformance-app-backend"
    assert (settings.grpc_port, settings.health_port) == (9102, 9103)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["-secure-serving=false"], "EPP_SECURE_SERVING", "false"),
        (["--secure-serving"], "EPP_SECURE_SERVING", "true"),
        (["--zap-log-level=5"], "EPP_LOG_LEVEL", "debug"),
        (["--zap-log-level", "warn"], "EPP_LOG_LEVEL", "warning"),
        (["--pool-group=example.io"], "EPP_POOL_GROUP", "example.io"),
        (["--metrics-port=1"], "EPP_METRICS_PORT", "1"),
    ],
)
def test_each_flag_stands_for_a_setting(flags, name, value):
    assert environ_of(*flags, EPP_METRICS_PORT="7")[name] == value


def test_without_flags_the_environment_holds():
    assert environ_of(EPP_GRPC_PORT="7") == {"EPP_GRPC_PORT": "7"}
