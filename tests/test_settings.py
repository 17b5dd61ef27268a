"""Settings fail at the start, with a message that helps."""

import pytest

from epp.settings import SettingsError, load_settings


def test_defaults_need_nothing():
    assert load_settings({}).grpc_port == 9002


def test_names_of_other_pickers_are_understood():
    assert load_settings({"DYN_KV_CACHE_BLOCK_SIZE": "64"}).block_size == 64
    assert load_settings({"DYN_KV_CACHE_BLOCK_SIZE": "64", "EPP_BLOCK_SIZE": "32"}).block_size == 32


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(SettingsError, match="EPP_GRCP_PORT: no such setting; did you mean EPP_GRPC_PORT"):
        load_settings({"EPP_GRCP_PORT": "1"})


def test_a_bad_value_names_the_variable_that_was_set():
    with pytest.raises(SettingsError, match="DYN_KV_CACHE_BLOCK_SIZE='0': input should be greater than or equal to 1"):
        load_settings({"DYN_KV_CACHE_BLOCK_SIZE": "0"})


@pytest.mark.parametrize(
    "name", ["EPP_SERVICE_HOST", "EPP_PORT", "EPP_GRPC_PORT", "EPP_PORT_9002_TCP_ADDR", "EPP_MAIN_SERVICE_PORT_GRPC"]
)
def test_variables_that_kubernetes_makes_for_a_service_are_no_settings(name):
    assert load_settings({name: "tcp://10.0.0.1:9002"}).grpc_port == 9002
