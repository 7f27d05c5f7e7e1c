"""Runs that end in a page, and a page as a browser reads it."""

import csv
from html.parser import HTMLParser

import ccfc
import tyro

from fcjax import session
from fcjax.grid import experiment

TINY = [
    "--clients=3",
    "--p=0",
    "--pretrain-rounds=2",
    "--cluster-rounds=1",
    "--local-epochs=1",
    "--batch-size=20",
    "--latent-size=8",
]
VOID = {"meta", "img", "circle", "path", "polyline"}


def prepared(out, *flags):
    """Returns the experiment of a small run, checked."""
    args = tyro.cli(ccfc.Args, args=[f"--out={out}", *TINY, *flags])
    return experiment.prepare(args, ccfc.describe)


def run(out, *flags):
    """Runs the script in this process, and returns its results folder."""
    session.execute(prepared(out, *flags))
    return out


class Read(HTMLParser):
    """What a page holds; fails where an element is not closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.sources = [], set(), [], []
        self.sheets, self.rows, self.text = {}, [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "href" in attrs:
            self.links.append(attrs["href"])
        if "src" in attrs:
            self.sources.append(attrs["src"])
        if tag == "li" and "title" in attrs:
            self.sheets[list(self.sheets)[-1]].append(attrs["title"])
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        self.text += text
        if self.open[-1:] == ["h3"]:
            self.sheets[text] = []
        if {"td", "th", "strong"} & set(self.open[-1:]):
            self.rows[-1].append(text + "*" * (self.open[-1] == "strong"))


def read(path):
    return Read(path.read_text())


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
