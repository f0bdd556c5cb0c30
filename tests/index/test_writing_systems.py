"""A multilingual checkpoint from its folder to its answers, in scripts with and without spaces."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import decoupled as dc
from decoupled.index.documents import read_passages
from decoupled.model import folder as folders
from decoupled.model.sentences import sentences
from tiny import save_tiny

TEXTS = {
    "zh": (
        ["长江流经武汉市。", "黄河流经兰州市。", "珠江流经广州市！", "松花江流经哈尔滨吗？"],
        "黄河",
        1,
    ),
    "ja": (
        ["東京は日本の首都です。", "京都には古い寺があります。", "大阪は商業の町です。"],
        "古い寺",
        1,
    ),
    "th": (["กรุงเทพเป็นเมืองหลวงของประเทศไทย", "เชียงใหม่อยู่ทางภาคเหนือ"], "ภาคเหนือ", 1),
    "ar": (["يمر نهر النيل بالقاهرة.", "أين تقع بغداد؟ ", "يمر نهر دجلة ببغداد."], "دجلة", 2),
    "de": (
        ["Das Dampfschiff fährt auf der Donau.", "Die Straßenbahn hält am Rathaus."],
        "straßenbahn",
        1,
    ),
}
PARAGRAPHS = 12


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """A random XLM-R whose sentence pieces are the characters of these texts."""
    letters = sorted({letter for texts, _, _ in TEXTS.values() for letter in "".join(texts)})
    names = ("<s>", "<pad>", "</s>", "<unk>", "▁", "<mask>")
    pieces = [*((name, 0.0) for name in names), *((letter, -8.0) for letter in letters)]
    pieces += [(f"▁{text[:3]}", -9.0) for texts, _, _ in TEXTS.values() for text in texts]
    pieces = list(dict(pieces).items())
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    checkpoint = tmp_path_factory.mktemp("xlm-r")
    save_tiny(checkpoint, "xlm-roberta", "span", tokenizer=True, vocab_size=len(pieces))
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    out = tmp_path_factory.mktemp("split") / "model"
    dc.Model.split(checkpoint, at=1).save(out)
    return out


@pytest.mark.parametrize("language", TEXTS)
def test_a_script_is_cut_searched_and_answered_in(multilingual, tmp_path, language):
    texts, query, best = TEXTS[language]
    path = tmp_path / f"{language}.txt"
    path.write_text("\n\n".join("".join(texts) for _ in range(PARAGRAPHS)), encoding="utf-8")
    tokenizer = folders.read_tokenizer(multilingual, folders.read_spec(multilingual))
    passages = list(read_passages(path, tokenizer=tokenizer, chunk=40))
    whole = next(read_passages(path, tokenizer=tokenizer, chunk=None)).text
    assert len(passages) > 1
    assert all(whole[p.meta["start"] : p.meta["end"]] == p.text for p in passages)
    assert "".join(p.text for p in passages).replace("\n", "").replace(" ", "") == (
        whole.replace("\n", "").replace(" ", "")
    )
    index = tmp_path / "index"
    rows = [dc.Passage(id=str(n), text=text) for n, text in enumerate(texts)]
    with dc.Index.create(index, multilingual) as made:
        made.add(rows)
        snapshot = made.store.snapshot
        found = snapshot.lexical(query, 1).rows
        assert [excerpt.id for excerpt in snapshot.texts(found)] == [str(best)], "by BM25"
    engine = dc.Engine(index)
    for answer in engine.ask(query, k=3, threshold=0):
        assert answer.passage[answer.start : answer.end] == answer.text
        assert answer.passage == texts[int(answer.passage_id)]


def test_sentences_end_in_every_script():
    for language in ("zh", "ja", "ar", "de"):
        texts = [text.strip() for text in TEXTS[language][0]]
        between = "" if language in ("zh", "ja") else " "
        assert [part.strip() for part in sentences(between.join(texts))] == texts


HOUSES = (
    "Das Haus steht an der Donau und ist alt.",
    "Die Häuser sind in der Stadt nicht alt.",
    "Der Garten ist hinter dem Haus und mit Rosen.",
    "Die Dampfschiffe sind auf der Donau.",
)


def test_words_meet_in_the_forms_of_their_language(multilingual, tmp_path):
    def by_bm25(query):
        with dc.Index.open(tmp_path / "index") as index:
            snapshot = index.store.snapshot
            rows = snapshot.lexical(query, 4).rows
            return sorted(int(excerpt.id) for excerpt in snapshot.texts(rows))

    with dc.Index.create(tmp_path / "index", multilingual) as index:
        index.add(dc.Passage(id=str(n), text=text) for n, text in enumerate(HOUSES))
    assert by_bm25("Häusern") == [0, 1, 2] == by_bm25("haus")
    assert by_bm25("Gärten") == [2] and by_bm25("Dampfschiffen") == [3]
    assert by_bm25("Schiff") == [], "a part of a compound is not found: docs/documents.md says so"


def test_passages_in_english_or_in_no_clear_language_keep_the_endings_of_english(tmp_path):
    with dc.Index.create(tmp_path / "index") as index:
        index.add([dc.Passage(id="a", text="The houses stand along the rivers of the town.")])
        index.add([dc.Passage(id="b", text="sqlite3_step() = SQLITE_DONE")])
        snapshot = index.store.snapshot
        assert len(snapshot.lexical("house by a river", 3).rows) == 1
        assert len(snapshot.lexical("sqlite_done", 3).rows) == 1
