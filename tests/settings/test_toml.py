import tomllib

from hypothesis import given
from hypothesis import strategies as st

from minichat.settings.toml import lines_of, literal, table

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(text, values, max_size=4))
def test_written_toml_is_read_back(found: dict[str, object]) -> None:
    assert tomllib.loads(f"value = {literal(found)}") == {"value": found}


@given(
    st.dictionaries(text, st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), values), max_size=3)
)
def test_tables_are_read_back_with_their_lines(found: dict[str, dict[str, object]]) -> None:
    written = "\n".join(table(name, values) for name, values in found.items())
    assert tomllib.loads(written) == found
    lines, rows = lines_of(written), written.split("\n")
    for name, values in found.items():
        assert rows[lines[name,] - 1] == f"[{literal(name)}]"
        for key, value in values.items():
            assert rows[lines[name, key] - 1] == f"{key} = {literal(value)}"


def test_lines_are_counted_as_in_toml() -> None:
    lines = lines_of(
        "a.b = 1  # c = 2\n"
        'x = """one\n'
        "y = 2\n"
        '"""\n'
        "z = '''in one line'''\n"
        '[ t . "u v" ]  # [w]\n'
        "'k' = '#'\n"
        "[[list]]\n"
        "n=1\n"
    )
    assert lines == {
        ("a", "b"): 1,
        ("x",): 2,
        ("z",): 5,
        ("t", "u v"): 6,
        ("t", "u v", "k"): 7,
        ("list",): 8,
        ("list", "n"): 9,
    }
