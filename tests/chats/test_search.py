import pytest

from minichat.chats.store import Store


@pytest.fixture
def filled(store: Store) -> Store:
    chat = store.create_chat("Block sizes")
    store.append(chat.id, "user", "Why are blocks of 16 tokens 100% better, not 50_50?")
    store.append(
        chat.id, "assistant", "Äpfel und BIRNEN\nshare   a cache block. " + "padding " * 40 + "far away"
    )
    closed = store.create_chat("old")
    store.append(closed.id, "user", "An older apple")
    store.close_chat(closed.id)
    return store


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("block", ["Block sizes", "Block sizes", "Block sizes"]),
        ("BLOCK cache", ["Block sizes"]),
        ("cache BLOCK", ["Block sizes"]),
        ("äpfel", ["Block sizes"]),
        ("ÄPFEL birnen", ["Block sizes"]),
        ("apple", ["old"]),
        ("100%", ["Block sizes"]),
        ("50_50", ["Block sizes"]),
        ("%", ["Block sizes"]),
        ("o_der", []),
        ("%'; DROP TABLE messages; --", []),
        ("nowhere", []),
        ("   ", []),
    ],
)
def test_finds_all_words_in_any_case_without_wildcards(filled: Store, query: str, titles: list[str]) -> None:
    assert [hit.title for hit in filled.search(query)] == titles


def test_an_untitled_chat_is_found_by_the_title_that_is_shown(filled: Store) -> None:
    untitled = filled.create_chat()
    assert [(hit.chat, hit.message) for hit in filled.search("NEW chat")] == [(untitled.id, None)]


def test_titles_come_first_then_the_newest_message(filled: Store) -> None:
    hits = filled.search("block")
    assert [hit.role for hit in hits] == ["", "assistant", "user"]
    assert hits[0].message is None
    assert filled.search("block", limit=2) == hits[:2]
    assert [hit.closed for hit in filled.search("old")] == [True, True]


def test_a_snippet_shows_the_words_on_one_line(filled: Store) -> None:
    (hit,) = filled.search("birnen SHARE")
    assert hit.snippet.startswith("Äpfel und BIRNEN share a cache block. padding")
    assert hit.snippet.endswith("…")
    assert [hit.snippet[start:end] for start, end in hit.marks] == ["BIRNEN", "share"]
    (hit,) = filled.search("far")
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("far away")
    assert [hit.snippet[start:end] for start, end in hit.marks] == ["far"]


def test_a_word_whose_case_folding_changes_its_length_is_found(store: Store) -> None:
    chat = store.create_chat()
    store.append(chat.id, "user", "Die Straße ist lang")
    (hit,) = store.search("STRASSE")
    assert (hit.snippet, hit.marks) == ("Die Straße ist lang", ())


def test_a_text_with_a_zero_byte_is_searched_to_its_end(store: Store) -> None:
    chat = store.create_chat()
    store.append(chat.id, "user", "before\x00after")
    assert len(store.search("after")) == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("a  CACHE", "a cache"),
        ("birnen share", "birnen"),  # a line ends between them
        ("away äpfel", "äpfel"),
    ],
)
def test_what_to_look_for_in_the_message(filled: Store, query: str, found: str) -> None:
    assert [hit.found for hit in filled.search(query)] == [found]


def test_reasoning_is_searched_too(store: Store) -> None:
    chat = store.create_chat()
    store.append(chat.id, "user", "hay")
    store.append(chat.id, "assistant", "A fine reply", reasoning="Some secret thought")
    (hit,) = store.search("some SECRET")
    assert (hit.snippet, hit.found) == ("Some secret thought", "some secret")
    (hit,) = store.search("thought fine")
    assert hit.snippet == "A fine reply Some secret thought"
    assert len(store.search("fine reply")) == 1
    assert store.search("fine hay") == []


def test_a_long_history_is_searched_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a screen stays usable meanwhile."""
    monkeypatch.setattr("minichat.chats.store._PIECE", 3)
    chat = store.create_chat("apple")
    for number in range(10):
        store.append(chat.id, "user", f"apple {number}" if number % 4 == 0 else "pear")
    pieces = [[hit.snippet for hit in hits] for hits in store.searching("apple")]
    assert pieces[0] == ["apple"]
    assert pieces[-1] == ["apple", "apple 8", "apple 4", "apple 0"]
    assert len(pieces) == 5
    assert [len(hits) for hits in store.searching("apple", limit=1)] == [1]
    assert [len(hits) for hits in store.searching("apple", limit=2)][-1] == 2
