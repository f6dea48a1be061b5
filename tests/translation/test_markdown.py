"""What of Markdown is translated, and what is not."""

import pytest

from reluformer.translation.markdown import markdown_lines

PAGE = """\
---
title: kept
---
# A title #
Setext title
============

Some *plain* text with `kept code` and [a link](http://kept.example/a_(b) "kept") here.
See https://kept.example/x?y=1. Also <b>bold</b>, ![a picture](kept.png) and [ref][kept].

- an item
  going on

      kept code in the item
* [ ] a task
12. numbered
    - nested

> quoted
> ```
> kept
> ```
>> deeper

```python
kept = "kept"  # kept
~~~
```

    kept code

    kept too
back to text
    no code after text

| Head | Other `kept` |
|:-----|-----:|
| cell | a \\| b |
left | right

[kept]: http://kept.example "kept"
[^1]: a note
<!-- kept
kept -->
<!-- kept --> after
<pre>
kept
</pre>
$$
kept
$$
price of $5 or $6 and $kept+1$ x
* * *
last"""

TRANSLATED = """\
---
title: kept
---
# A TITLE #
SETEXT TITLE
============

SOME PLAIN TEXT WITH `kept code` AND [A LINK](http://kept.example/a_(b) "kept") HERE.
SEE https://kept.example/x?y=1. ALSO <b>BOLD</b>, ![A PICTURE](kept.png) AND [REF][kept].

- AN ITEM
  GOING ON

      kept code in the item
* [ ] A TASK
12. NUMBERED
    - NESTED

> QUOTED
> ```
> kept
> ```
>> DEEPER

```python
kept = "kept"  # kept
~~~
```

    kept code

    kept too
BACK TO TEXT
    NO CODE AFTER TEXT

| HEAD | OTHER `kept` |
|:-----|-----:|
| CELL | A \\| B |
LEFT | RIGHT

[kept]: http://kept.example "kept"
[^1]: A NOTE
<!-- kept
kept -->
<!-- kept --> AFTER
<pre>
kept
</pre>
$$
kept
$$
PRICE OF $5 OR $6 AND $kept+1$ X
* * *
LAST"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_prose_alone_is_translated(start: str, end: str) -> None:
    given = start + PAGE.replace("\n", end)
    lines = list(markdown_lines(given.splitlines(keepends=True)))
    assert "".join(line.render([x.upper() for x in line.sentences]) for line in lines) == start + TRANSLATED.replace(
        "\n", end
    )


def parts(line: str, before: str = "") -> list[str]:
    return list(list(markdown_lines([*before.splitlines(keepends=True), line]))[-1].sentences)


def test_pieces_of_a_line() -> None:
    assert parts("Run `make` to build **it**.") == ["Run", "to build it."]
    assert parts("``a ` b`` and c") == ["and c"]
    assert parts("a | b") == ["a | b"]  # no table
    assert parts("1 < 2 and 3 > 2") == ["1 < 2 and 3 > 2"]
    assert parts("5) five") == ["five"]
    assert parts("#hashtag") == ["#hashtag"]
    assert parts("[not a link] at all") == ["[not a link] at all"]
    assert parts("text[^2] more") == ["text", "more"]
    assert parts("x", "> ```\n> code\n") == ["x"]  # the fence ends with its quote
    assert parts("x", "````\n```\n") == []  # a longer fence is not closed by a shorter one
    assert parts("a: b", "---\n\n") == ["a: b"]  # a rule, no front matter


def test_a_translation_stays_prose() -> None:
    """Whatever the model writes begins no list, heading, quote or code."""
    (line,) = markdown_lines(["some text\n"])
    for text in ("# x", "- x", "* x", "+ x", "> x", "1. x", "12) x", "~~~ x", "```", "===", "| x", "a `b` c"):
        found = line.render([text])
        assert found.replace("\\", "") == f"{text}\n"
        again, following = markdown_lines([found, "next\n"])
        assert again.parts[0] in ("", found), text  # no mark is taken off it
        assert found.count("\\`") == text.count("`")
        assert following.sentences == ("next",), text
    assert line.render(["-x *y* 1.5 #z"]) == "-x *y* 1.5 #z\n"
    (row,) = markdown_lines(["| a | b |\n"])
    assert row.render(["x|y", "- z"]) == "| x\\|y | - z |\n"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("This is **very important** for us.", ["This is very important for us."]),
        ("The *committee* has __not__ decided.", ["The committee has not decided."]),
        ("**Note:** it is *new*. **All of it.** Yes.", ["Note:", "it is new.", "All of it.", "Yes."]),
        ("- **Fast**: it is quick", ["Fast", "it is quick"]),
        ("***Both of them.***", ["Both of them."]),
        ("2*3*4, a * b and snake_case_name", ["2*3*4, a * b and snake_case_name"]),
        (r"some \*escaped\* text", [r"some \*escaped\* text"]),
        ("**[link](x.md)** and more", ["link", "and more"]),
        ("Write to me@example.org or so.", ["Write to", "or so."]),
        ("See [the speech][] now.", ["See", "now."]),
        ("| **a** | 1,051 |", ["a"]),
        ("12:30", []),
    ],
)
def test_emphasis_and_addresses(line: str, parts: list[str]) -> None:
    (found,) = markdown_lines([line + "\n"])
    assert list(found.parts[1::2]) == parts
    assert found.render(found.parts[1::2]) == "".join(found.parts)


@pytest.mark.parametrize(
    "page",
    [
        '<img\n  src="the white house.png"\n  alt="the white house">\n',
        "Some text <!-- a remark that\ngoes on here --> and more.\n",
        '+++\ntitle = "A title"\n+++\n',
        "<preface>\n",
        "<img\n  alt=it is never closed\n\n",
        "text <!-- a remark that is never closed\n\n",
        "<script\n  src=x>\nlet a = 1\n</script>\n",
    ],
)
def test_what_is_kept_whole_ends_where_it_ends(page: str) -> None:
    *kept, last = markdown_lines([*page.splitlines(keepends=True), "A sentence.\n"])
    assert all(len(line.parts) == 1 for line in kept)
    assert last.parts == ("", "A sentence.", "\n")


def test_a_comment_in_code_is_none() -> None:
    (line, following) = markdown_lines(["Write `<!--` to begin one.\n", "A sentence.\n"])
    assert list(line.sentences) == ["Write", "to begin one."]
    assert list(following.sentences) == ["A sentence."]


def test_pieces_around_code_and_links() -> None:
    """What stands between a piece and its neighbours stays there, and no piece ends what goes on."""
    (line,) = markdown_lines(["We need money for `research`, see [the report](x.md), or (`ask`) us.\n"])
    assert line.sentences == ("We need money for", "see", "the report", "or", "us.")
    said = ["Wir brauchen Geld für.", "siehe.", "den Bericht.", "oder", "uns."]
    assert line.render(said) == "Wir brauchen Geld für `research`, siehe [den Bericht](x.md), oder (`ask`) uns.\n"
    (whole,) = markdown_lines(["# A heading\n"])
    assert whole.render(["Usw."]) == "# Usw.\n"
