from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mojo_runtime.config import Config, config


def test_cache_folder_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_MOJO_BACKEND_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for home, expected in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "xdg"), "xdg")):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert config.cache_dir == tmp_path / expected / "torch-mojo-backend"
    monkeypatch.setenv("TORCH_MOJO_BACKEND_CACHE_DIR", "~/kernels")
    assert config.cache_dir == tmp_path / "kernels"


@pytest.mark.parametrize(("text", "value"), [("0", False), ("off", False), ("1", True), ("", True)])
def test_booleans(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("TORCH_MOJO_BACKEND_TRACE", text)
    assert config.trace is value


def test_a_value_that_is_not_understood_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MOJO_BACKEND_THREADS", "0")
    with pytest.raises(ValueError, match="TORCH_MOJO_BACKEND_THREADS='0': must be 1 or more"):
        _ = config.threads


def test_scope_overrides_for_all_threads_and_restores() -> None:
    seen: list[str] = []
    with config.scope(devices="cpu:2"):
        with config.scope(threads=3):
            thread = threading.Thread(target=lambda: seen.append(f"{config.devices} {config.threads}"))
            thread.start()
            thread.join()
        assert config.devices == "cpu:2"
    assert seen == ["cpu:2 3"]
    with pytest.raises(TypeError, match="no such setting: colour"), config.scope(colour="red"):
        pass


def test_settings_are_read_only_and_documented() -> None:
    with pytest.raises(AttributeError, match="MOJO_RUNTIME_DEVICES"):
        config.devices = "cpu"
    variables = Config.variables()
    assert len({variable.variable for variable in variables}) == len(variables)
    assert all(variable.doc.endswith(".") for variable in variables)
