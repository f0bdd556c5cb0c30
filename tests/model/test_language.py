"""Which language a text is in, and whether the model's tokenizer was made for it."""

import logging

import pytest
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from decoupled import Engine, Index, Passage
from decoupled.model.folder import read_spec, read_tokenizer, starter_model
from decoupled.model.language import WORDS, is_language, language, query_note, unread_language
from decoupled.model.tokens import Tokenizer

GERMAN = "Der Vertrag kann mit einer Frist von drei Monaten gekündigt werden, wenn er nicht ruht."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    model = starter_model()
    return read_tokenizer(model, read_spec(model))


@pytest.mark.parametrize(
    "text, name",
    [
        ("When was Nikola Tesla born?", "English"),
        ("Wann wurde Nikola Tesla geboren?", "German"),
        ("Wer schrieb Dracula?", "German"),
        ("Quand est né Nikola Tesla ?", "French"),
        ("¿Cuándo nació Nikola Tesla?", "Spanish"),
        ("合同可以在年底前三个月通知后终止", "Chinese"),
        ("日本の首都はどこですか", "Japanese"),
        ("계약은 연말 전에 해지할 수 있습니다", "Korean"),
    ],
)
def test_a_language_is_known_by_its_script_or_its_commonest_words(text, name, tokenizer):
    assert language(text) == name
    assert unread_language(tokenizer, [text]) == (None if name == "English" else name)


def test_what_is_not_clear_has_no_language():
    for text in ("", "tesla born", "SELECT * FROM t", "12 + 5", "max_connections = 100"):
        assert language(text) is None
    assert "Arabic" in language("متى ولد نيكولا تسلا؟")
    assert "Cyrillic" in language("Какой порт слушает сервер?")


def test_a_tokenizer_that_keeps_common_words_whole_was_made_for_the_language(tokenizer):
    words = ["[UNK]", *WORDS["German"].split(), *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"##{letter}" for letter in words[-26:]]
    made = tokenizers.Tokenizer(WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = Lowercase(), Whitespace()
    german = Tokenizer(made.to_str(), tokenizer.spec)
    assert unread_language(german, ["Wann wurde der Vertrag gekündigt?"]) is None
    assert unread_language(german, ["When was the contract ended, and by whom?"]) == "English"


def test_letters_that_repeat_are_no_language(tokenizer):
    for text in ("x" * 5000, "aaaa bbbb aaaa bbbb", "ab" * 60 + "cd"):
        assert not is_language(text)
        assert "does not look like words" in query_note(tokenizer, text)
    for text in ("HTTP", "aaa", "我我我", "What is a Rindfleischetikettierungsgesetz?"):
        assert is_language(text)
    assert query_note(tokenizer, "Who wrote Dracula?") is None


def test_an_index_of_another_language_is_said_once_and_so_is_a_query(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), Index.create(tmp_path / "i", starter_model()) as index:
        index.add([Passage(id=str(n), text=f"{n}. {GERMAN}") for n in range(120)])
    (line,) = [r.getMessage() for r in caplog.records if "seem to be" in r.getMessage()]
    assert "in German" in line and "--model" in line
    caplog.clear()
    engine = Engine(tmp_path / "i")
    with caplog.at_level(logging.WARNING), Index.open(tmp_path / "i", write=True) as index:
        index.add([Passage(id="e", text="The town is on the river and was built by the king.")])
    assert not caplog.records
    found = engine.search("Wann wird der Vertrag gekündigt?")
    assert "in German" in found.notes[0] and found.to_json()["notes"] == list(found.notes)
    assert (
        not engine.search("the river").notes and "notes" not in engine.search("the river").to_json()
    )
    nothing = engine.ask("x" * 5000)
    assert not len(nothing) and nothing.rejected and "does not look like words" in nothing.notes[0]
    assert engine.ask("x" * 5000, threshold=0), "who wants every guess gets it"
