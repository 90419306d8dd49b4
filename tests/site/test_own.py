"""Numbers of one's own: pasted scores and vectors, dropped arrays, every step of explain and whatif."""

import urllib.parse

import pages
import pytest

numpy = pytest.importorskip("numpy")


def opened(visit, query="", **options):
    page = visit(f"#own{query}", **options)
    return page, pages.answered(page, "own")


def test_works_through_the_textbooks_row(stay, command):
    page, box = opened(stay)
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 60
    text = box.locator(".worked").inner_text()
    for number in ("1,202,604", "1,387,386", "0.867", "0.419"):
        assert number in text
    assert "0.867" in box.locator(".says").inner_text()


@pytest.mark.parametrize(
    "text,wanted",
    [
        ("14, 10, 12", {"scores": "14,10,12"}),
        ("[14 10\t12]", {"scores": "14,10,12"}),
        ("−20; 3", {"q": "-20", "k": ["3"]}),
        ("-20, 3.5, 1e1, .25", {"scores": "-20,3.5,10,0.25"}),
        ("q = 1, 0, 1, 0\nk = 0 1 1 1\nk1: 1,1,0,0", {"q": "1,0,1,0", "k": ["0,1,1,1", "1,1,0,0"]}),
    ],
)
def test_understands_what_people_paste(stay, command, text, wanted):
    page, box = opened(stay)
    page.get_by_label("Scores, or vectors").fill(text)
    pages.answered(page, "own", text=text)
    words = box.locator(".how [data-at]").text_content()
    for name, value in wanted.items():
        for one in value if isinstance(value, list) else [value]:
            assert f"--{name} {one}" in words or f"--{name}={one}" in words, words
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 10


@pytest.mark.parametrize(
    "text,line",
    [
        ("14, pear, 12", '"pear" is not a number'),
        ("", "nothing yet"),
        ("1, 2\n1, 2, 3", "line 2 has 3 numbers, but the query on line 1 has 2"),
        ("<img src=x onerror=alert(1)>", "is not a number"),
        ("14, 1e999", '"1e999" is not a number'),
    ],
)
def test_says_in_a_line_what_is_wrong(stay, text, line):
    page, box = opened(stay)
    before = box.locator(".worked").inner_text()
    page.get_by_label("Scores, or vectors").fill(text)
    box.locator(".refused").filter(has_text=line).wait_for()
    assert box.locator(".worked").inner_text() == before, "what was shown stays"
    page.get_by_label("Scores, or vectors").fill("1, 2")
    pages.answered(page, "own", text="1, 2")
    assert box.locator(".refused").inner_text() == ""


def test_examples_rules_and_dk_can_be_chosen_and_passed_on(visit, stay, command):
    page, box = opened(stay)
    page.get_by_role("button", name="−20, 3, 25, −15").click()
    pages.answered(page, "own", text="-20, 3, 25, -15")
    page.get_by_role("checkbox", name="8/").check()
    page.get_by_role("checkbox", name="no scaling").uncheck()
    box = pages.answered(page, "own", rules="sqrt_dk,dk,dk(8)")
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 60
    page.wait_for_function(
        "() => location.hash.includes('rules=sqrt_dk&rules=dk&rules=dk(8)') && !location.hash.includes('rules=none')"
    )
    words = box.locator(".says").inner_text()
    other, same = opened(visit, page.evaluate("location.hash").removeprefix("#own"))
    assert same.locator(".says").inner_text() == words
    assert other.get_by_label("Scores, or vectors").input_value() == "-20, 3, 25, -15"


def arrays(folder):
    draw = numpy.random.default_rng(5)
    shapes = {"q": (2, 16, 32), "k": (2, 48, 32), "v": (2, 48, 8)}
    paths = {}
    for name, shape in shapes.items():
        paths[name] = folder / f"layer0_{name}.npy"
        numpy.save(paths[name], draw.standard_normal(shape).astype(numpy.float32) * 1.5)
    return paths


def test_dropped_arrays_are_put_under_every_rule(visit, command, tmp_path):
    page, _ = opened(visit)
    paths = arrays(tmp_path)
    for name, path in paths.items():
        page.get_by_label(f"{name}.npy").set_input_files(path)
    box = page.locator(".own-arrays")
    box.locator(".whatif .says").wait_for()
    page.get_by_label("causal").check()
    box.locator(".how [data-at]", has_text="--causal").wait_for(state="attached")
    assert pages.hold_against_command(box, command, folder=tmp_path) > 100
    assert not box.get_by_role("button", name="Save q.npy", include_hidden=True).is_visible(), "they are one's own"


def test_a_file_is_dropped_on_the_page_and_sorted_by_its_name(visit, tmp_path):
    page, _ = opened(visit)
    paths = arrays(tmp_path)
    data = page.evaluate_handle(
        """files => {
          const out = new DataTransfer();
          for (const [name, bytes] of files) out.items.add(new File([new Uint8Array(bytes)], name));
          return out;
        }""",
        [[path.name, list(path.read_bytes())] for name, path in paths.items() if name != "v"],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    page.locator(".whatif .says").wait_for()
    assert "layer0_k.npy" in page.locator(".files").inner_text()


@pytest.mark.parametrize("content,line", [(b"hello", "q"), (b"\x93NUMPY\x01\x00\xff\xff{}", "q")])
def test_a_file_that_is_no_array_is_refused_in_a_line(visit, tmp_path, content, line):
    page, _ = opened(visit)
    good = arrays(tmp_path)["k"]
    bad = tmp_path / "q.npy"
    bad.write_bytes(content)
    page.get_by_label("k.npy").set_input_files(good)
    page.get_by_label("q.npy").set_input_files(bad)
    page.locator(".own-arrays .refused").filter(has_text=line).wait_for()


def test_a_random_head_is_at_hand(visit, command, tmp_path):
    page, _ = opened(visit)
    page.get_by_role("button", name="Use a random head").click()
    box = page.locator(".own-arrays")
    box.locator(".whatif .says").wait_for()
    assert box.locator("figure.chart").count() == 1
    _, text = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    assert text.startswith("rule,")
    box.locator(".how summary").click()
    for name in ("q", "k", "v"):
        with page.expect_download() as download:
            box.get_by_role("button", name=f"Save {name}.npy").click()
        assert download.value.suggested_filename == f"{name}.npy"
        download.value.save_as(tmp_path / f"{name}.npy")
    assert pages.hold_against_command(box, command, folder=tmp_path) > 100


def test_what_its_charts_show_is_in_the_address(visit, stay):
    page, box = opened(stay)
    box.locator("figure select").select_option("raw_gradient")
    page.get_by_role("button", name="Use a random head").click()
    head = page.locator(".whatif figure")
    head.locator("select").select_option("sigma")
    head.get_by_role("button", name="all others").click()
    page.get_by_label("causal").check()
    page.locator(".own-arrays .how [data-at]", has_text="--causal").wait_for(state="attached")
    assert head.locator("select").input_value() == "sigma", "arrays that are computed anew are shown as those before"
    assert head.locator("button[aria-pressed=false]").inner_text() == "all others"
    page.wait_for_function("() => location.hash === '#own?show=raw_gradient&arrays_show=sigma&arrays_off=others'")
    other, same = opened(visit, "?show=raw_gradient&arrays_show=sigma&arrays_off=others")
    assert same.locator("svg[role=img]").inner_html() == box.locator("svg[role=img]").inner_html()
    other.get_by_role("button", name="Use a random head").click()
    head = other.locator(".whatif figure")
    head.wait_for()
    assert head.locator("select").input_value() == "sigma"
    assert head.locator("button[aria-pressed=false]").inner_text() == "all others"
    opened(stay, "?show=banana")
    assert box.locator("figure select").input_value() == "softmax"


def test_newer_arrays_do_not_wait_for_older_ones(visit, tmp_path):
    page, _ = opened(visit)
    paths = {name: tmp_path / f"{name}.npy" for name in ("q", "k")}
    for path in paths.values():
        numpy.save(path, numpy.ones((1, 16384, 64), numpy.float32))  # half a minute and more
    for name, path in paths.items():
        page.get_by_label(f"{name}.npy").set_input_files(path)
    page.get_by_text("Computing").wait_for()
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif figcaption", has_text="64 queries on 256 keys").wait_for(timeout=10000)


def test_dk_is_asked_for_where_it_is_not_known(stay):
    page, box = opened(stay)
    dk = page.get_by_label("d_k, length of q and k")
    assert dk.is_visible()
    page.get_by_label("Scores, or vectors").fill("1, 2\n3, 4")
    pages.answered(page, "own", text="1, 2\n3, 4")
    assert not dk.is_visible(), "vectors say it"


def test_sums_are_written_as_one_would_write_them(stay, command):
    text = "0.1, 0.2\n0.3, 0.4\n0.7, 0.1\n1234567.25, 1"
    page, box = opened(stay, "?" + urllib.parse.urlencode({"text": text}))
    pages.answered(page, "own", text=text)
    table = box.get_by_role("table", name="The dot products")
    assert "1,234,567.25" in table.inner_text()
    sums = [row.locator("td").last.inner_text() for row in table.locator("tbody tr").all()[1:]]
    assert sums == ["0.11", "0.09", "123,456.925"], sums
    axis = box.locator(".canvas .axis .tick text").all_text_contents()
    assert "0.11" in axis and "0.1100" not in axis
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 10


def test_a_rule_has_one_name(stay):
    page, _ = opened(stay, "?rules=none&rules=sqrt_dk&rules=sqrt_dk*ssmax(0.43)")
    box = pages.answered(page, "own", rules="none,sqrt_dk,sqrt_dk*ssmax(0.43)")
    name = "1/√d_k × SSMax 0.43 ln n"
    assert page.get_by_role("checkbox", name=name).is_checked()
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif .says").wait_for()
    for read in (box.locator("svg[role=img]"), page.locator(".whatif svg[role=img]")):
        words = read.locator("text").all_text_contents()
        plain = [word.replace("\n", "") for word in words]
        assert "no scaling" in plain and any(word.startswith("1/√dk × SSMax") for word in plain), plain
        assert not any(word in ("none", "sqrt_dk", "sqrt_dk*ssmax(0.43)") for word in plain)
    for address, menu in (("#playground", "First rule"), ("#phase", "Rule")):
        page = stay(address)
        options = page.get_by_label(menu, exact=True).locator("option").all_text_contents()
        assert "no scaling" in options and "1/√dₖ × SSMax 0.43 ln n" in options


def test_a_file_that_misses_its_place_does_not_end_the_page(stay):
    page, _ = opened(stay)
    prevented = page.evaluate(
        """() => {
          const dropped = (where, type, data) => {
            const transfer = new DataTransfer();
            data(transfer);
            const event = new DragEvent(type, {dataTransfer: transfer, bubbles: true, cancelable: true});
            document.querySelector(where).dispatchEvent(event);
            return event.defaultPrevented;
          };
          const file = (transfer) => transfer.items.add(new File(["x"], "q.npy"));
          const words = (transfer) => transfer.setData("text/plain", "1, 2, 3");
          return [
            dropped(".site-foot", "dragover", file), dropped(".site-foot", "drop", file),
            dropped("textarea", "drop", file), dropped("textarea", "drop", words)];
        }"""
    )
    assert prevented == [True, True, True, False], "words may be dropped into the box"


def test_a_thousand_scores_do_not_make_a_thousand_columns(stay, command):
    page, box = opened(stay)
    text = ", ".join(str((7 * i) % 23) for i in range(1000))
    page.get_by_label("Scores, or vectors").fill(text)
    pages.answered(page, "own", text=text)
    assert box.locator(".worked th[scope=col]").count() < 100
    assert "the first 24 of 1,000 keys" in box.locator(".worked").inner_text()
    _, saved = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    assert len(saved.splitlines()) == 1 + 3 * 1000


def test_its_drawing_stands_alone(stay):
    page, box = opened(stay)
    drawing = pages.saved_drawing(page, box.get_by_role("button", name="Save as SVG"))
    assert len(drawing["rects"]) > 9


def test_by_keyboard_alone(visit, command):
    page, box = opened(visit)
    page.get_by_label("Scores, or vectors").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("3, 1, 4")
    pages.answered(page, "own", text="3, 1, 4")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # the second example
    page.keyboard.press("Enter")
    pages.answered(page, "own", text="50, 10, 5", dk=100)
    while page.evaluate("document.activeElement.type") != "checkbox":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    box = pages.answered(page, "own", rules="sqrt_dk,dk")
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 40
    page.locator("[data-live=own] .canvas").focus()
    page.keyboard.press("ArrowRight")
    said = box.locator("figure [aria-live=polite]").first.inner_text()
    assert said.startswith("key 1: q·k 50"), said


def test_a_finger_sets_it_on_a_phone(visit):
    page, box = opened(visit, width=390)
    page.get_by_role("button", name="50, 10, 5").tap()
    pages.answered(page, "own", text="50, 10, 5", dk=100)
    page.get_by_role("checkbox", name="8/").tap()
    box = pages.answered(page, "own", rules="none,sqrt_dk,dk,dk(8)")
    box.locator("svg .mark").first.tap()
    box.locator(".tip:visible", has_text="key 1").wait_for()
    page.get_by_role("button", name="Use a random head").tap()
    page.locator(".whatif .says").wait_for()


def test_a_phone_shows_keys_beside_each_other(visit):
    page, box = opened(visit, width=390)
    tables = box.locator(".worked .scroll").all()
    assert len(tables) == 3
    for table in tables:
        edge = table.bounding_box()["x"] + table.bounding_box()["width"]
        columns = [head.bounding_box() for head in table.locator("thead th", has_text="key ").all()]
        assert sum(column["x"] + column["width"] <= edge for column in columns) >= 2


@pytest.mark.parametrize("text", ["50, 10, 5", "1e-9, 5e8, 3.25", ", ".join(str(i % 7) for i in range(60))])
def test_labels_stay_apart(visit, text):
    page, _ = opened(visit, "?" + urllib.parse.urlencode({"text": text}), calm=True)
    pages.labels_apart(page)


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, widths):
    page, _ = opened(visit, width=widths[0], calm=True)
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif .says").wait_for()
    pages.looks(page, shots, "own", widths)
