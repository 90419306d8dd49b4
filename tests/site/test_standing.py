"""The pages without an engine: of `rootdk tour --static`, of `rootdk audit --html`, of a watch's report. That they show
what their JSON says is tested where they are made (tests/report, tests/python); here they are held to what the site is
held to: axe-core's rules and ours, nothing that moves by itself, a finger, and pictures to be looked at."""

import pathlib
import re
import subprocess

import conftest
import pages
import pytest

SAMPLES = conftest.ROOT / "web/site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("standing")


@pytest.fixture(scope="module")
def tour(command, folder):
    subprocess.run([command, "tour", "--quick", "--static", "--out", folder], check=True, capture_output=True)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def audit(command, folder):
    subprocess.run(
        [
            command,
            "audit",
            SAMPLES / "sample-trained.safetensors",
            "--against",
            SAMPLES / "sample-untrained.safetensors",
            "--html",
            folder / "audit.html",
        ],
        check=True,
        capture_output=True,
    )
    return (folder / "audit.html").as_uri()


@pytest.fixture(scope="module")
def watch(folder):
    """Four layers of eight heads that grow until one alarm after the other rings."""
    torch = pytest.importorskip("torch")
    rootdk = pytest.importorskip("rootdk")  # the wheel that ./run python has installed
    for installed in sorted((pathlib.Path(rootdk.__file__).parent / "web").iterdir()):
        here = conftest.ROOT / "web" / installed.name
        if here.exists():
            assert installed.read_text() == here.read_text(), f"{installed}: of another checkout; ./run python first"

    class Layer(torch.nn.Module):
        def __init__(self, place):
            super().__init__()
            self.place = place

        def forward(self, x, size):
            grown = x * (1 + 0.2 * self.place) * size ** (0.5 * self.place)
            return x + 0 * torch.nn.functional.scaled_dot_product_attention(grown, grown.roll(1, -2), x)

    torch.manual_seed(0)
    model = torch.nn.ModuleDict({f"block{place}": Layer(place) for place in range(4)})
    with rootdk.watch(model, on=rootdk.Alarm(max_score=60, call=lambda event: None)) as watched:
        for step in range(24):
            x = torch.randn(2, 8, 32, 16)
            for layer in model.values():
                x = layer(x, 1.08**step)
    assert watched.alarms
    return watched.report(folder / "watch.html").as_uri()


@pytest.fixture(params=["tour", "audit", "watch"])
def standing(request):
    """(what it is, its address)"""
    return request.param, request.getfixturevalue(request.param)


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, standing, widths):
    name, address = standing
    page = visit(of=address, width=widths[0], calm=True)
    pages.looks(page, shots, f"standing-{name}", widths)


def test_a_watch_says_its_statistics_in_words(visit, watch):
    page = visit(of=watch)
    assert page.get_by_label("Statistic").input_value() == "sigma_ratio"
    said = page.locator("#lead").inner_text() + page.locator("#alarms").inner_text()
    assert "largest score (" in said or "largest raw score (c·q·k)" in said, said
    for name in ("raw_max", "trace_j", "sigma_ratio"):
        assert name not in said
    words = page.locator("#map .in-cell").all_text_contents()
    assert any(text.endswith("▲") for text in words) and not any("alarm" in text for text in words), words


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_moves_while_it_comes_up(visit, standing, width):
    _, address = standing
    page = visit(of=address, width=width)
    pages.watch_shifts(page)
    pages.settled(page)
    page.mouse.wheel(0, 4000)
    pages.settled(page)
    assert pages.shifted(page) == []


def test_a_finger_reads_its_figures(visit, standing):
    name, address = standing
    page = visit(of=address, width=390)
    canvas = page.locator("figure.chart .canvas").first
    canvas.scroll_into_view_if_needed()
    mark = canvas.locator("svg .mark, svg rect.cell").nth(1).bounding_box()
    page.touchscreen.tap(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    canvas.locator(".tip:visible", has_text=re.compile("[0-9]")).wait_for()
