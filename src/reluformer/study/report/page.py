"""The report as one self-contained HTML page, with styles and plots inside."""

import base64
import html
import re
from collections.abc import Sequence

from reluformer.study.report.blocks import Block, Heading, Image, Paragraph, Picture, Recipes, Table, Text
from reluformer.study.report.colours import style_sheet

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1f2937;--quiet:#5f6b7a;--line:#e2e6ea;--soft:#f5f7f9;--link:#1d4ed8;
--good:#146c37;--good-soft:#dcf3e4;--bad:#a61b1b;--bad-soft:#fbe3e1;--open:#5f5236;--open-soft:#f3ecd9;LIGHT}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--ink:#d7dce3;--quiet:#98a3b0;--line:#2d343d;--soft:#1b2027;
--link:#8fb4ff;--good:#7fdba0;--good-soft:#153524;--bad:#ff9d94;--bad-soft:#43201f;--open:#dcc795;--open-soft:#38311f;
DARK}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:66rem;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.3rem;line-height:1.25;margin:3rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.6rem 0 .4rem}
p{margin:.5rem 0;max-width:48rem}
a{color:var(--link)}
.quiet{color:var(--quiet)}p.quiet{font-size:.85rem}
nav{margin:1.2rem 0;padding:.7rem 1rem;background:var(--soft);border-radius:8px}
nav ul{margin:0;padding:0;list-style:none;columns:17rem;column-gap:2rem}nav li{padding:.15rem 0}
.wide{overflow-x:auto;margin:.7rem 0}
table{border-collapse:collapse;font-size:.88rem;line-height:1.4}
th,td{padding:.4rem .8rem .4rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--quiet);vertical-align:bottom}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
th.number{white-space:normal}
.prose{min-width:13rem;max-width:22rem}
.facts td{border:0;padding:.1rem 1.2rem .1rem 0}.facts .prose{max-width:none}
.name{min-width:8rem}.short{white-space:nowrap}
.good,.bad,.open{display:inline-block;border-radius:5px;padding:.05rem .45rem}
.good{color:var(--good);background:var(--good-soft)}.bad{color:var(--bad);background:var(--bad-soft)}
.open{color:var(--open);background:var(--open-soft)}
b.good,b.bad,b.open{white-space:nowrap;font-weight:600}
figure{margin:1rem 0 1.6rem}figcaption{font-weight:600;font-size:.9rem;margin-bottom:.3rem}
figure .plot{overflow-x:auto}svg{display:block;height:auto;max-width:100%;min-width:21rem}.two svg{min-width:36rem}
img{display:block;height:auto;max-width:100%;min-width:21rem;border-radius:6px}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif!important;fill:var(--ink)}
details{margin:1rem 0;font-size:.88rem}summary{cursor:pointer;color:var(--link)}
details p{margin:.8rem 0 .2rem;font-weight:600}
code,pre{font:.82rem/1.5 ui-monospace,Menlo,Consolas,"Liberation Mono",monospace}
pre{margin:.3rem 0;padding:.4rem .7rem;background:var(--soft);border-radius:6px;overflow-x:auto}
@media(max-width:40rem){.words thead{display:none}.words td:last-child::before{content:"paper: "}
.words tr{display:block;padding:.6rem 0;border-bottom:1px solid var(--line)}
.words td{display:block;border:0;padding:.12rem 0;max-width:none;white-space:normal}}
@media print{details>*{display:block}body{max-width:none}}
"""


def page(blocks: Sequence[Block]) -> str:
    """Return the whole HTML file."""
    title = next((block.text for block in blocks if isinstance(block, Heading) and block.level == 1), "Report")
    style = _STYLE.replace("LIGHT", style_sheet(dark=False)).replace("DARK", style_sheet(dark=True)).strip()
    contents = [block for block in blocks if isinstance(block, Heading) and block.level == 2]
    # The table of contents goes before the first heading that it lists.
    start = next((i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.level == 2), len(blocks))
    body = [_block(block) for block in blocks]
    body.insert(start, _contents(contents))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{html.escape(title)}</title>\n'
        f"<style>\n{style}\n</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _contents(headings: Sequence[Heading]) -> str:
    links = "".join(f'<li><a href="#{html.escape(h.anchor)}">{html.escape(h.text)}</a></li>' for h in headings)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def _block(block: Block) -> str:
    match block:
        case Heading():
            anchor = f' id="{html.escape(block.anchor)}"' if block.anchor else ""
            return f"<h{block.level}{anchor}>{html.escape(block.text)}</h{block.level}>"
        case Paragraph():
            start = '<p class="quiet">' if block.quiet else "<p>"
            return f"{start}{html.escape(block.text)}</p>"
        case Table():
            return _table(block)
        case Picture():
            title, wide = html.escape(block.title), " two" if block.panels > 1 else ""
            svg = block.svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
            return f'<figure><figcaption>{title}</figcaption><div class="plot{wide}">{svg}</div></figure>'
        case Image():
            title, data = html.escape(block.title), base64.b64encode(block.png).decode()
            image = f'<img alt="{title}" src="data:image/png;base64,{data}">'
            return f'<figure><figcaption>{title}</figcaption><div class="plot">{image}</div></figure>'
        case Recipes():
            return _recipes(block)


def _table(table: Table) -> str:
    width = len(table.head) or max((len(row) for row in table.rows), default=1)
    numbers = width - table.numeric
    head = "".join(f"<th{_class(i >= numbers)}>{html.escape(title)}</th>" for i, title in enumerate(table.head))
    rows = "".join(
        f"<tr>{''.join(_cell(text, i >= numbers) for i, text in enumerate(row))}</tr>\n" for row in table.rows
    )
    kind = "numbers" if table.numeric else "words" if table.head else "facts"
    top = f"<thead><tr>{head}</tr></thead>\n" if head else ""
    return f'<div class="wide"><table class="{kind}">\n{top}<tbody>\n{rows}</tbody></table></div>'


def _class(numeric: bool, text: str = "") -> str:
    if numeric:
        return ' class="number"'
    return ' class="prose"' if len(text) > 40 else ' class="name"' if len(text) > 12 else ' class="short"'


def _cell(text: Text, numeric: bool) -> str:
    # A line must not break inside "p = 0.03".
    inner = re.sub(r"\b([np]) ([=<]) (?=\d)", "\\1\u00a0\\2\u00a0", text.text)
    inner = html.escape(inner)
    tone = f' class="{text.tone}"' if text.tone else ""
    if text.bold or text.tone:
        mark = "b" if text.bold else "span"
        inner = f"<{mark}{tone}>{inner}</{mark}>"
    return f"<td{_class(numeric, text.text)}>{inner}</td>"


def _recipes(block: Recipes) -> str:
    parts = ["<details><summary>Cells and commands</summary>"]
    for recipe in block.recipes:
        cells = ", ".join(f"<code>{html.escape(cell)}</code>" for cell in recipe.cells)
        commands = "".join(f"<pre>{html.escape(command)}</pre>" for command in recipe.commands)
        parts.append(f"<p>{html.escape(recipe.arm)}</p>{cells}{commands}")
    return "\n".join([*parts, "</details>"])
