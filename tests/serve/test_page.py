"""The web page in a real browser, against a real server with the starter model."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

import browser
import decoupled as dc
from browser import Page
from live import free_port, sample_subset, serving

pytestmark = pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))

PUBLISHED = "When was Moby-Dick published?"
WARSAW = "What river runs through Warsaw?"
STOKER = "Bram Stoker wrote the novel Dracula in 1897."


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = sample_subset(folder / "warsaw.idx", "Warsaw", range(24, 36))
    with dc.Index.open(path, write=True) as index:
        index.add(chapters())
    questions = folder / "questions.jsonl"
    questions.write_text(json.dumps({"question": WARSAW}) + "\n", encoding="utf-8")
    with serving(path, "--questions", questions) as url:
        yield url


def chapters():
    """Two documents that were cut into passages; both say when Moby-Dick came out. One is a passage."""
    texts = {
        "books/whale.html": [
            ("Moby-Dick › Plot", "A sailor signs on with a captain who hunts whales."),
            ("Moby-Dick › Publication", "The novel Moby-Dick was published in 1851 in London."),
            ("Moby-Dick › Reception", "Reviewers of the time liked it well enough."),
        ],
        "books/gothic.html": [
            ("Gothic novels › Late", "Moby-Dick, published in 1851, closed the century.")
        ],
    }
    for source, parts in texts.items():
        start = 0
        for n, (title, text) in enumerate(parts):
            meta = {"document": source, "start": start, "end": start + len(text)}
            yield dc.Passage(id=f"{source}#{n}", text=text, title=title, meta=meta)
            start += len(text) + 1
    lit = "The lighthouse of Skerry was lit in 1844."
    meta = {"document": "skerry.txt", "start": 0, "end": len(lit)}
    yield dc.Passage(id="skerry.txt", text=lit, meta=meta)
    tide = "Tides\n\nThe tide of Corran turns\nat nineteen minutes past six."
    meta = {"document": "coast/tide.txt", "start": 0, "end": len(tide)}
    yield dc.Passage(id="coast/tide.txt#1", text=tide, meta=meta)


@pytest.fixture(scope="module")
def driver():
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def page(driver, address):
    opened = Page(driver, address)
    opened.open()
    opened.see("#facts", "passages")
    yield opened
    assert opened.errors() == []


def passages(page):
    return int(re.sub(r"\D", "", page.see("#facts b").text))


def add(page, text, title=""):
    page.click("#open-add")
    page.type("#add-name", title)
    page.put("#add-text", text)
    page.click("#add-send")
    page.see("#add-count", "1 passage added")


def test_an_example_is_asked_and_its_answer_is_marked_in_its_passage(page):
    page.click("#examples button", WARSAW)
    assert "Vistula" in page.see("#best-answer").text
    answer = page.see("#best-answer").text
    assert page.see(".best mark").text == answer
    page.see(".hit mark", "Vistula")
    hits = page.all(".hit")
    shown = [float(e.text.rstrip(" %")) for e in page.all(".hit .score b")]
    assert len(hits) == 10 and shown == sorted(shown, reverse=True) and shown[0] > 50
    assert page.driver.title.startswith(WARSAW) and "?q=What%20river" in page.driver.current_url
    page.open(page.driver.current_url.removeprefix(page.url))
    assert page.see("#best-answer").text == answer  # an address can be shared


def test_the_bar_says_where_the_milliseconds_went(page):
    page.ask(WARSAW)
    assert page.all(".legend li") == [], "only those who want to know see it"
    page.click("#how summary")
    assert "stored as" in page.see("#model").text
    stages = [item.text.split("\n")[0].split()[0] for item in page.all(".legend li")]
    assert stages == ["encode", "retrieve", "fetch", "cross"]
    widths = {
        name: page.driver.execute_script(
            "return document.querySelector(arguments[0]).getBoundingClientRect().width",
            f"#time .bar .{name}",
        )
        for name in [*stages, "other"]
    }
    assert widths["cross"] == max(widths.values()) > 100 and sum(widths.values()) < 800


def test_no_answer_is_a_state_of_its_own(page):
    page.ask("How long do I have to boil an egg?")
    page.see(".silent .none", "No answer found")
    assert page.all("#best-answer") == [] and page.all(".silent mark") == []
    page.see(".hit")
    page.click(".guesses summary")
    page.see(".silent mark")
    page.ask("x" * 300)
    page.see("#answers .note", "does not look like words")


def test_the_start_names_the_corpus_and_a_phone_has_no_delete(page, address):
    assert re.fullmatch(r"\S+ · [\d,]+ passages", page.see("#facts").text)
    with browser.chromium(width=390, height=844) as phone:
        small = Page(phone, address)
        small.open()
        small.ask(WARSAW)
        assert small.all(".hit") and small.all(".hit .delete") == []


def test_the_joint_model_stands_beside_it_on_request(page):
    page.ask(WARSAW)
    page.click("#how summary")
    assert page.all("#versus .side") == []
    page.click("#compare")
    assert re.search(r"[\d.]+× (faster|slower)|As fast", page.see("#speedup", seconds=240).text)
    times = [side.find_element("css selector", ".ms").text for side in page.all(".side")]
    assert len(times) == 2 and all(re.fullmatch(r"[\d.]+ m?s", t) for t in times)
    page.see("#versus .hint", "Median of 5 runs each, both loaded before.")
    page.see("#versus .hint", "trained split")


def test_equal_answers_are_one_with_their_documents(page):
    page.ask(PUBLISHED)
    assert page.see("#best-answer").text == "1851"
    assert sum(e.text.startswith("1851") for e in page.all(".other .text")) == 0
    assert " · books/" in page.see(".best .from").text
    page.click(".best .evidence summary", "Also said in 1 other place")
    assert page.see(".evidence mark").text == "1851"
    first, other = page.see(".best > .source .from").text, page.see(".evidence .from").text
    assert {first.split(" · ")[1], other.split(" · ")[1]} == {
        "books/whale.html",
        "books/gothic.html",
    }


def test_a_document_without_headings_is_named_once(page):
    page.ask("When was the lighthouse of Skerry lit?")
    page.see(".best .from", "skerry.txt")
    assert page.see(".best .from").text == "skerry.txt"
    assert page.see(".hit .head").text.count("skerry.txt") == 1


def test_lines_flow_paragraphs_stand_apart_and_a_file_comes_before_its_folder(page):
    page.ask("When does the tide of Corran turn?")
    page.see(".best .from", "tide.txt · coast/tide.txt")
    assert page.see(".hit .open").text == "tide.txt"
    shown = [line.strip() for line in page.see(".hit .words").text.split("\n")]
    assert shown == ["Tides", "The tide of Corran turns at nineteen minutes past six."]


def test_a_source_opens_the_text_around_it_and_can_be_the_only_one(page):
    page.ask(PUBLISHED)
    page.click(".hit .open", "Publication")
    assert page.see("#source .here").text == "The novel Moby-Dick was published in 1851 in London."
    page.see("#source mark")
    assert "1851" in [mark.text for mark in page.all("#source mark")]
    text = page.see("#source-text").text
    assert text.index("A sailor") < text.index("The novel Moby-Dick") < text.index("Reviewers")
    assert page.see("#source-place").text == "books/whale.html · characters 51–103"
    page.click("#source-only")
    page.see("#filter-name", "books/whale.html")
    page.gone("#results.stale")
    page.gone(".hit code", "gothic")
    assert {e.text for e in page.all(".hit code")} == {"books/whale.html"}
    assert "&in=books%2Fwhale.html" in page.driver.current_url
    page.open(page.driver.current_url.removeprefix(page.url))
    page.see("#filter-name", "books/whale.html")  # an address can be shared
    page.see(".hit")
    page.click("#filter-off")
    page.gone("#filter")
    page.see(".hit code", "books/gothic.html")


def test_an_error_does_not_stand_above_old_answers(page):
    page.ask(WARSAW)
    page.driver.execute_script(
        "window.kept = fetch; window.fetch = () => Promise.reject(new TypeError())"
    )
    page.type("#question", "Who wrote Dracula?\n")
    page.see("#problem", "The server does not answer")
    assert page.all("#results") == [] and page.all(".best") == []
    page.driver.execute_script("window.fetch = window.kept")
    page.click("#retry")
    page.see(".best")
    page.gone("#problem")


def test_a_passage_is_added_found_and_deleted(page):
    before = passages(page)
    add(page, STOKER, title="Dracula")
    page.click("#add-close")
    page.see("#facts", f"{before + 1} passages")
    page.ask("Who wrote Dracula?")
    assert page.see("#best-answer").text == "Bram Stoker"
    hit = page.see(".hit", "Dracula")
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", hit)
    button = hit.find_element("css selector", ".delete")
    button.click()
    assert button.text == "Really delete?" and passages(page) == before + 1
    button.click()
    page.see("#facts", f"{before} passages")
    page.gone(".hit", "Dracula")
    page.gone("#answers", "Stoker")  # what rested on it is asked again
    page.ask("Who wrote Dracula?")
    assert not any("Stoker" in hit.text for hit in page.all(".hit"))


def test_files_are_uploaded_and_bad_ones_say_where(page, tmp_path):
    before = passages(page)
    lines = tmp_path / "books.jsonl"
    rows = [
        {"_id": "emma", "text": "Emma is by Jane Austen.", "year": 1815, "meta": {"lang": "en"}},
        {"id": "dune", "text": "Dune."},
    ]
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    table = tmp_path / "more.csv"
    table.write_text('id,title,text\nulysses,"Joyce, James","He wrote ""Ulysses""\nin Paris."\n')
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{oops\n')
    page.click("#open-add")
    chooser = page.driver.find_element("css selector", "#add-file")
    chooser.send_keys(str(broken))
    assert page.see("#add-problem").text == "broken.jsonl, line 2 is not JSON"
    chooser.clear()
    chooser.send_keys(f"{lines}\n{table}")
    page.see("#add-count", "3 passages to add")
    page.click("#add-send")
    page.see("#add-count", "3 passages added")
    page.see("#facts", f"{before + 3} passages")
    assert [e.get_dom_attribute("data-id") for e in page.all("#added li")] == [
        "ulysses",
        "dune",
        "emma",
    ]
    query = {"query": "Jane Austen", "where": {"year": 1815, "lang": "en"}}
    request = urllib.request.Request(
        f"{page.url}/v1/search", json.dumps(query).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        assert [hit["id"] for hit in json.load(reply)["hits"]] == ["emma"]
    for _ in range(3):
        delete = page.see("#added .delete")
        place = delete.find_element("xpath", "..").get_dom_attribute("data-id")
        delete.click()
        delete.click()
        page.gone(f"#added li[data-id={place}]")
    page.see("#facts", f"{before} passages")


def test_a_document_is_sent_as_it_is(page, tmp_path):
    before = passages(page)
    notes = tmp_path / "harbour.md"
    notes.write_text("# Harbour\n\nThe lamp of Skerry was lit in 1844.\n", encoding="utf-8")
    page.click("#open-add")
    page.driver.find_element("css selector", "#add-file").send_keys(str(notes))
    page.see("#add-count", "1 document to add")
    page.click("#add-send")
    page.see("#add-count", "1 passage added")
    assert page.see("#added li").text == "harbour.md: 1 passage"
    page.see("#facts", f"{before + 1} passages")


def test_text_stays_text_and_marks_count_characters_as_the_server_does(page):
    text = '😀😀 The <img src=x onerror="document.title=1"> sign of Zorbland is the blue tulip.'
    add(page, text)
    page.click("#add-close")
    page.ask("What is the sign of Zorbland?")
    answer = page.see("#best-answer").text
    assert page.see(".best mark").text == answer and "tulip" in answer
    assert page.see(".best .words").text == text
    assert page.driver.find_elements("css selector", "main img") == []


def test_the_keyboard_is_enough(page):
    from selenium.webdriver.common.keys import Keys

    body = page.see("body")
    page.driver.execute_script("document.activeElement.blur()")
    body.send_keys("/")
    assert page.driver.switch_to.active_element.get_dom_attribute("id") == "question"
    page.driver.switch_to.active_element.send_keys(WARSAW + Keys.ENTER)
    page.see("#best-answer")
    body.send_keys(Keys.ESCAPE)
    page.gone("#best-answer")
    assert page.see("#question").get_property("value") == "" and page.see("#examples")
    page.click("#open-add")
    page.see("#add-text").send_keys("/")  # a sign like any other inside a field
    assert page.see("#add-text").get_property("value") == "/"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.gone("#add")


def test_light_and_dark_are_a_choice_that_stays(page):
    def ground():
        return page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.click("#theme")
    dark = ground()
    page.open()
    assert light != dark == ground()
    page.click("#theme")
    assert ground() == light


def test_nothing_is_wider_than_a_phone(address):
    with browser.chromium(width=360, height=740) as narrow:
        page = Page(narrow, address)
        page.open()
        page.see("#examples button")
        page.ask(WARSAW)
        widest = "return document.documentElement.scrollWidth"
        assert page.driver.execute_script(widest) == 360
        narrow.get(f"{address}/docs")
        page.click(".opblock-post .opblock-summary")
        assert page.driver.execute_script(widest) == 360
        page.click(".opblock-post .execute")
        assert page.see(".live-responses-table tbody .response-col_status").text.startswith("200")
        assert page.errors() == []


def test_long_names_and_texts_without_spaces_stay_in_their_place(page):
    river = "河" * 300 + "。The river of Qinland is the Zhu. " + "水" * 300
    page.driver.execute_async_script(
        """const [id, text, done] = arguments;
        import("/static/api.js").then((api) => api.add([{ id, text }])).then(done);""",
        "https://example.org/" + "very/long/path/" * 20,
        river,
    )
    page.ask("What is the river of Qinland?")
    if page.all(".guesses summary"):
        page.click(".guesses summary")
    assert "Zhu" in page.see(".best mark").text
    assert len(page.see(".best .words").text) < 450
    width = page.driver.execute_script("return innerWidth")
    assert page.driver.execute_script("return document.documentElement.scrollWidth") == width
    right = "return arguments[0].getBoundingClientRect().right"
    edge = page.driver.execute_script(right, page.see(".best"))
    assert page.driver.execute_script(right, page.see(".best .score")) < edge
    delete = page.see(".hit .delete")
    assert delete.accessible_name.startswith("Delete https://example.org/")
    delete.click()
    assert delete.accessible_name.startswith("Really delete? https://example.org/")
    page.click(".hit .delete.armed")
    page.see("#toast", "Deleted")


def test_back_and_forward_walk_through_the_questions(page):
    page.ask(WARSAW)
    page.ask("Which city is the capital of Poland?")
    page.driver.back()
    page.see("#best-answer", "Vistula")
    assert page.see("#question").get_property("value") == WARSAW
    page.driver.back()
    page.gone("#best-answer")
    assert page.see("#question").get_property("value") == "" and page.see("#examples")
    page.driver.forward()
    page.see("#best-answer", "Vistula")


def test_an_empty_index_a_key_and_a_server_that_goes_and_comes_back(driver, tmp_path):
    path, keys, port = tmp_path / "empty.idx", tmp_path / "keys", free_port()
    dc.Index.create(path).close()
    keys.write_text("s3cret\n")
    words = (path, "--api-key-file", keys)
    with serving(*words, port=port) as url:
        page = Page(driver, url)
        page.open()
        page.click("#empty-add")
        page.type("#add-text", STOKER)
        page.click("#add-send")
        page.see("#key", "asks for a key")
        page.type("#key-value", "s3cret\n")
        page.see("#add-send")
        page.click("#add-send")
        page.see("#add-count", "1 passage added")
        page.click("#add-close")
        page.gone("#empty")
        page.ask("Who wrote Dracula?")
        assert page.see("#best-answer").text == "Bram Stoker"
    page.type("#question", "Who wrote Dracula, the book?\n")
    page.see("#problem", "The server does not answer")
    page.errors()  # the browser notes the refused connection and the missing key itself
    with serving(*words, "--protect-reads", port=port):
        page.click("#retry")
        page.gone("#problem")
        assert page.see("#best-answer").text == "Bram Stoker" and page.errors() == []
        page.driver.execute_script("sessionStorage.clear()")
        page.open()
        page.see("#key", "asks for a key")
        page.type("#key-value", "s3cret\n")
        page.see("#facts", "1 passage")
        page.gone("#problem")
        page.errors()
