import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.api.places import DiskRoom, expanded
from minichat.shell.paths import locate, private_folder


def test_the_default_paths_are_in_the_home() -> None:
    paths = locate({"HOME": "/home/me"})
    assert {name: str(path) for name, path in paths.named().items()} == {
        "settings": "/home/me/.config/minichat/config.toml",
        "presets": "/home/me/.config/minichat/presets.toml",
        "themes": "/home/me/.config/minichat/themes",
        "chats": "/home/me/.local/state/minichat/chats.db",
        "remembered": "/home/me/.local/state/minichat/remembered.json",
        "exports": "/home/me/.local/state/minichat/exports",
        "clipboard": "/home/me/.local/state/minichat/clipboard.txt",
        "log": "/home/me/.local/state/minichat/minichat.log",
        "engine_log": "/home/me/.local/state/minichat/engine.log",
        "engines": "/home/me/.local/state/minichat/engines",
        "server_key": "/home/me/.local/state/minichat/server.key",
        "config": "/home/me/.config/minichat",
        "state": "/home/me/.local/state/minichat",
        "cache": "/home/me/.cache/minichat",
    }


def test_xdg_variables_move_them_and_a_relative_folder_is_ignored() -> None:
    paths = locate(
        {"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": ""}
    )
    assert [str(paths.config), str(paths.state), str(paths.cache)] == [
        "/etc/me/minichat",
        "/home/me/.local/state/minichat",
        "/home/me/.cache/minichat",
    ]


def test_a_user_without_a_home_gets_a_writable_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    assert locate({}).state.name == "minichat"
    assert f"minichat-{os.getuid()}" in str(locate({}).state)


def test_a_private_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    for folder in (tmp_path / "open", tmp_path / "new" / "deep"):
        assert stat.S_IMODE(private_folder(folder).stat().st_mode) == 0o700


@pytest.mark.parametrize("module", ["minichat.settings", "minichat.shell.paths", "minichat.chats.store"])
def test_settings_and_chats_import_neither_textual_nor_torch(root: Path, module: str) -> None:
    program = f"import sys, {module}; print(*({{'textual', 'torch', 'numpy'}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


def test_an_unknown_user_is_part_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x") == Path("/home/me/x")
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")
    assert DiskRoom.parse("~no-such-user/x:1").folder == Path("~no-such-user/x/minichat-kv")
