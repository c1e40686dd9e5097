"""Completion for zsh, using _arguments."""

from collections.abc import Iterator

from minichat.completions.table import DEFAULT, Option, Subcommand, Table, Value, filled

_SCRIPT = r"""#compdef minichat
# Completions of minichat for zsh. In .zshrc, after compinit: eval "$(minichat completions zsh)"

_minichat() {
    local command=@default@
    local -a alone commands=(
@described@
    )
    if ((CURRENT == 2)); then
        if [[ $PREFIX != -* ]]; then
            _describe command commands
            return
        fi
        alone=(
@alone@
        )
    fi
    case $words[2] in
        (@names@)
            command=$words[2]
            shift words
            ((CURRENT--)) ;;
    esac
    case $command in
@commands@
    esac
}
if [[ $funcstack[1] == _minichat ]]; then  # a file of $fpath, which is read when it is first called for
    _minichat "$@"
else
    compdef _minichat minichat
fi
"""


def script(table: Table) -> str:
    return filled(
        _SCRIPT,
        default=[DEFAULT],
        alone=(f"            {_quoted(spec)}" for option in table.alone for spec in _specs(option)),
        described=(f"        {_quoted(f'{each.name}:{each.help}')}" for each in table.commands),
        names=["|".join(table.names)],
        commands=(line for command in table.commands for line in _lines(command)),
    )


def _lines(command: Subcommand) -> Iterator[str]:
    yield f"        ({command.name}) _arguments{' $alone' if command.name == DEFAULT else ''} \\"
    specs = [spec for option in command.options for spec in _specs(option)]
    if command.called:
        specs.append(f"*:{_plain(command.called)}:{_action(command.word)}")
    yield from (f"            {_quoted(spec)} \\" for spec in specs)
    yield "            ;;"


def _specs(option: Option) -> Iterator[str]:
    for name in option.names:
        again, behind = "*" if option.again else "", ""
        if option.value is not None:
            name += "=" if name.startswith("--") else ""
            behind = f":{_plain(option.called)}:{_action(option.value)}"
        yield f"{again}{name}[{_plain(option.help)}]{behind}"


def _action(value: Value) -> str:
    """The action that completes the word; a blank only shows a description."""
    words, paths = " ".join(value.words), {"": "", "files": "_files", "folders": "_files -/"}[value.paths]
    if value.several:
        return f"_values -s , word {words}"
    if words and paths:
        return f"{{compadd {words}; {paths}}}"
    return f"({words})" if words else paths or " "


def _plain(text: str) -> str:
    """Escape characters that are special to _arguments."""
    return "".join(f"\\{letter}" if letter in "\\[]:" else letter for letter in text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
