import re
from html.parser import HTMLParser
from pathlib import Path

from reluformer.study.experiment import Claim
from reluformer.study.report.blocks import Heading, Image, Table, Text
from reluformer.study.report.content import content
from reluformer.study.report.page import page
from tests.study.report.samples import cell, cells, experiment, sweep

NOWHERE = Path("nowhere")
EVIL = '<script>alert("x")</script> & |'


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.targets = set(), set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            if name in ("src", "href", "xlink:href"):
                self.targets.add(value)


def parsed(text):
    links = Links()
    links.feed(text)
    return links


def test_the_page_needs_nothing_else():
    swept, measured = sweep()
    text = page(
        content([experiment(Claim("a", "bleu", "ReLU", "softmax")), swept], cells("ReLU", 1) + measured, NOWHERE)
    )
    found = parsed(text)
    assert all(target.startswith("#") for target in found.targets)
    assert {target[1:] for target in found.targets} <= found.ids
    assert {"#claims", "#ffn", "#slots"} <= found.targets
    assert not found.tags & {"script", "link", "iframe", "img"}
    assert set(re.findall(r'https?://[^"\s<>]+', text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert set(re.findall(r"url\(([^)])", text)) <= {"#"}
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_names_and_errors_are_escaped():
    lost = cell(EVIL, 0, "failed", error=EVIL)
    curves = [cell(EVIL, 1, curve=[{"step": 1, "nll": 2.0, "seconds": 1.0}] * 3), cell("ReLU", curve=[{"nll": 1.0}])]
    claim = Claim(EVIL, "bleu", EVIL, EVIL, paper=EVIL)
    evil = experiment(claim, title=EVIL, question=EVIL, paper={EVIL: {"bleu": EVIL}})
    text = page(content([evil], [lost, *curves], NOWHERE))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_numbers_stand_at_the_right_and_verdicts_in_colour():
    table = Table(("arm", "n"), ((Text("a"), Text("1", bold=True, tone="good")),), numeric=1)
    text = page([Heading("T", 1), table])
    assert '<td class="number"><b class="good">1</b></td>' in text
    assert "<title>T</title>" in text


def test_images_are_inside():
    text = page([Image("maps/a.png", "Map", b"png")])
    assert '<img alt="Map" src="data:image/png;base64,cG5n">' in text
