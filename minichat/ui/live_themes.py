"""The program's themes. A user's theme is reloaded whenever its file is saved."""

from collections.abc import Callable, Sequence
from pathlib import Path

from textual.app import App
from textual.timer import Timer

from minichat.shell.themes import Themes, Watch, copied, load_themes, shipped_themes

_USUAL = "minichat-dark"
_LOOKS_EVERY = 0.5  # seconds, only while a user's theme is active


class LiveThemes:
    """Replaces Textual's themes: ours also color owners and blocks."""

    def __init__(
        self,
        app: App[object],
        folder: Path,
        report_all: Callable[[Sequence[object], Sequence[object]], None],
    ) -> None:
        """`report_all`: shows problems, and no longer those that were there before and are solved."""
        self.known = Themes({}, [])
        self._app, self._folder, self._report_all = app, folder, report_all
        self._saved = Watch(folder)
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Start watching, once the program runs."""
        self._timer = self._app.set_interval(_LOOKS_EVERY, self.look, pause=True)
        self.watch()

    def watch(self) -> None:
        """Poll for saved files only while a user's theme is active, as it may be being edited."""
        if self._timer is not None:
            own = self.known.files[self._app.theme].parent == self._folder
            (self._timer.resume if own else self._timer.pause)()

    def look(self) -> None:
        """Reload the themes if a file was saved, and report its errors."""
        before = self.known.problems
        if self._saved.changed():
            self.read(self._app.theme)
            self._app.refresh_css(animate=False)
            self._report_all(self.known.problems, before)

    def read(self, theme: str) -> None:
        """Load all themes and select one. The active one stays while its file is missing or invalid."""
        before, self.known = self.known, load_themes(shipped_themes(), self._folder)
        palettes, files = self.known.palettes, self.known.files
        if theme not in palettes and (file := before.files.get(theme)) is not None:
            called = next((name for name, each in files.items() if each == file), theme)
            if called == theme:
                palettes[theme], files[theme] = before.palettes[theme], file
            theme = called
        elif theme not in palettes:
            theme = _USUAL
        for palette in palettes.values():
            self._app.register_theme(palette.theme())
        self._app.theme = theme
        for name in self._app.available_themes.keys() - palettes.keys():
            self._app.unregister_theme(name)

    def copy(self, name: str) -> Path:
        """Copy the current theme to the user's themes and select the copy. Return its file."""
        if name in self.known.palettes:
            raise FileExistsError(f"a theme named {name!r} already exists")
        file = copied(self.known.files[self._app.theme], name, self._folder)
        self._saved.changed()
        self.read(name)
        return file
