"""Completion for fish."""

from collections.abc import Iterator

from minichat.completions.table import DEFAULT, Option, Table, Value, filled

_SCRIPT = r"""# Completions of minichat for fish. In config.fish: minichat completions fish | source

function __minichat_first --description "whether nothing is there yet but the program's name"
    test (count (commandline -opc)) -eq 1
end

function __minichat_in --description 'whether it is the command line of one of these commands'
    set -l words (commandline -opc)
    set -l command @default@
    if contains -- "$words[2]" @names@
        set command $words[2]
    end
    contains -- $command $argv
end

complete -c minichat -f
@lines@
"""
_FIRST = "complete -c minichat -n __minichat_first"


def script(table: Table) -> str:
    return filled(_SCRIPT, default=[DEFAULT], names=[" ".join(table.names)], lines=_lines(table))


def _lines(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"{_FIRST} -a {command.name} -d {_quoted(command.help)}"
    for option in table.alone:
        yield f"{_FIRST} {_option(option)}"
    for option in dict.fromkeys(option for command in table.commands for option in command.options):
        theirs = " ".join(command.name for command in table.commands if option in command.options)
        yield f"complete -c minichat -n '__minichat_in {theirs}' {_option(option)}"
    for command in table.commands:
        if command.word.words:
            yield f"complete -c minichat -n '__minichat_in {command.name}' {_offers(command.word)}"


def _option(option: Option) -> str:
    names = (f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    offers = "" if option.value is None else f" {_offers(option.value)}"
    return f"{' '.join(names)}{offers} -d {_quoted(option.help)}"


def _offers(value: Value) -> str:
    """-x: require a value and offer no other files; -F: a file."""
    words = " ".join(value.words)
    if value.paths == "files":
        return f"-rF -a {_quoted(words)}" if words else "-rF"
    if value.paths == "folders":
        return f"-x -a {_quoted(f'{words} (__fish_complete_directories)'.strip())}"
    if value.several:
        return f"-x -a {_quoted(f'(__fish_append , {words})')}"
    return f"-x -a {_quoted(words)}" if words else "-x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
