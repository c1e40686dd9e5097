"""Tab completes the names of files after an @ in lines that readline reads, as on the screen."""

from types import ModuleType

from minichat.session.attachments import entries, folder_of, offers, typing


def complete_names(readline: ModuleType) -> None:
    found: list[str] = []

    def completed(word: str, number: int) -> str | None:
        """readline asks for one completion of the word after another."""
        if number == 0:
            found[:] = names(readline.get_line_buffer()[: readline.get_endidx()], readline.get_begidx())
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t\n")
    readline.set_completer(completed)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")


def names(before: str, begin: int) -> list[str]:
    """What can replace the line's text from `begin` to the cursor. `before`: the line up to the cursor.

    readline keeps what all of them begin with, so a name that only contains the text has to be the only one.
    """
    if (typed := typing(before)) is None:
        return []
    inserts = [each.insert for each in offers(typed.name, entries(folder_of(typed.name)))]
    kept, text = before[typed.start : begin], before[typed.start :]
    fitting = [each for each in inserts if each.startswith(text)] or inserts
    if len(fitting) > 1 and fitting is inserts:
        return []
    return [each.removeprefix(kept) for each in fitting if each.startswith(kept)]
