"""``reluformer translate`` and ``reluformer evaluate``, with a model that copies and with a real one."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reluformer import cli, pretrained
from reluformer.translation import loading
from reluformer.translation.translator import Translator
from tests.translation.stubs import Copier

NASTY = "\ufeffIn the beginning\r\n\r\n\x0cGod created 😀\u2028 heaven\r\n***\r\n  and\x85 earth\t\r\n" + "light " * 200

NOTHING = "has nothing to translate: what is written is what was read"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(x) for x in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch, tokenizer) -> Copier:
    """In the place of every model."""
    model = Copier()
    monkeypatch.setattr(loading, "load_model", lambda folder, device, precision: (model, tokenizer))
    return model


def test_files_of_all_formats(capsys, folder: Path, copier: Copier) -> None:
    Path("a.txt").write_bytes(NASTY.encode())
    Path("empty.txt").touch()
    page = "# Title\n\n- item `x`\n\n```\ncode\n```"
    Path("b.md").write_text(page)
    Path("c.jsonl").write_text('{"id": 1, "en": ["In the beginning", ""]}\n')
    names = ["a.txt", "empty.txt", "b.md", "c.jsonl"]
    status, out, err = run(capsys, "translate", *names, "--model", "m", "--output", "out", "--target", "de")
    assert (status, out, err) == (0, "", f"reluformer translate: empty.txt {NOTHING}\n")
    assert sorted(os.listdir("out")) == sorted(names)
    found = Path("out/a.txt").read_bytes().decode()
    # White space inside a line that would end one elsewhere becomes a space; all that is around stays.
    assert found == NASTY.replace("\u2028 ", " ").replace("and\x85 ", "and ")
    assert Path("out/empty.txt").read_bytes() == b""
    assert Path("out/b.md").read_text() == page
    assert json.loads(Path("out/c.jsonl").read_text())["de"] == ["In the beginning", ""]
    assert sum(map(len, copier.calls)) > 4
    assert len(copier.calls) < 4  # files share batches


def test_standard_input_and_output(capsysbinary, folder: Path, copier: Copier, monkeypatch) -> None:
    for arguments in ([], ["-"], ["-", "--output", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NASTY.encode())))
        with pytest.raises(SystemExit) as stopped:
            cli.main(["translate", "--model", "m", *arguments])
        out, err = capsysbinary.readouterr()
        assert (stopped.value.code, err) == (0, b"")
        assert out.decode() == NASTY.replace("\u2028 ", " ").replace("and\x85 ", "and ")
    assert list(folder.iterdir()) == []


def test_a_process_as_a_filter(model_folder: Path) -> None:
    command = [sys.executable, "-m", "reluformer", "translate", "--model", str(model_folder), "--beam", "1"]
    options = {"capture_output": True, "timeout": 120, "check": False, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    done = subprocess.run(command, input=b"God said:\r\n\r\nlight", **options)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.split(b"\n")
    assert len(lines) == 3
    assert lines[0].endswith(b"\r")
    assert lines[1] == b"\r"
    full = f"{' '.join(command)} > /dev/full"
    done = subprocess.run(full, shell=True, input=b"light", **options)
    assert done.returncode == 2
    assert done.stderr.decode().endswith("cannot write standard output: No space left on device\n")
    assert done.stderr.count(b"\n") == 1


def test_a_real_model_with_maps(capsys, folder: Path, model_folder: Path) -> None:
    Path("a.txt").write_text("God said:\nLet there be light.\n\nAnd there was light.\n")
    options = ["--model", model_folder, "--beam", 2, "--length", 64, "--device", "cpu", "--attention", "maps"]
    assert run(capsys, "translate", "a.txt", *options, "--heads", "*:*:1") == (0, "", "")
    assert Path("a.translated.txt").read_text().count("\n") == 4
    figures = sorted(str(path.relative_to("maps/a.txt")) for path in Path("maps").rglob("*.png"))
    sites = ["decoder.cross_attention-0-1", "decoder.self_attention-0-1", "encoder.self_attention-0-1"]
    windows = sorted({name.split("/")[0] for name in figures})
    assert 2 <= len(windows) <= 4
    assert figures == [f"{window}/{site}.png" for window in windows for site in sites]
    Path("a.translated.txt").unlink()
    status, _, err = run(capsys, "translate", "a.txt", *options, "--heads", "decoder.cross_attention:9:0")
    assert status == 2
    assert "heads must name an attention head" in err
    assert not Path("a.translated.txt").exists()  # refused before the work
    Path("other").mkdir()
    shutil.copy("a.txt", "other")
    status, _, err = run(capsys, "translate", "a.txt", "other/a.txt", *options)
    assert status == 2
    assert "takes files of different names, got a.txt twice" in err


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Path:
    """In the place of the model in the box."""
    monkeypatch.setattr(pretrained, "FOLDER", model_folder)
    return model_folder


def test_without_a_model_the_one_in_the_box_translates(capsys, folder: Path, box: Path) -> None:
    Path("a.txt").write_text("light\n")
    Path("c.jsonl").write_text('{"text": ["light"]}\n')
    options = ["--beam", 1, "--device", "cpu"]
    assert run(capsys, "translate", "a.txt", "c.jsonl", *options) == (0, "", "")
    assert Path("a.de.txt").read_text().count("\n") == 1  # named after its language
    assert run(capsys, "translate", "a.txt", "--model", box, "--output", "named.txt", *options)[0] == 0
    assert Path("a.de.txt").read_text() == Path("named.txt").read_text()
    assert json.loads(Path("c.de.jsonl").read_text()).keys() == {"text", "de"}
    assert run(capsys, "translate", "c.jsonl", "--source", "text", "--target", "said", *options) == (0, "", "")
    assert json.loads(Path("c.said.jsonl").read_text()).keys() == {"text", "said"}
    status, _, message = run(capsys, "translate", "a.txt", "--target", "klingon", *options)  # text has no keys
    assert status == 2
    assert "translates en into de, got --target klingon" in message
    assert not Path("a.klingon.txt").exists()


@pytest.mark.parametrize("text", ["", "\n", "\n \n\t\r\n\n", "***\n😀\n\n--", "\ufeff"])
def test_nothing_to_translate_is_said_and_kept(capsys, folder: Path, copier: Copier, monkeypatch, text: str) -> None:
    Path("a.txt").write_bytes(text.encode())
    assert run(capsys, "translate", "a.txt", "--model", "m", "--output", "b.txt") == (
        0,
        "",
        f"reluformer translate: a.txt {NOTHING}\n",
    )
    assert Path("b.txt").read_bytes() == text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    status, _, err = run(capsys, "translate", "--model", "m", "--output", "c.txt")
    assert (status, err) == (0, f"reluformer translate: standard input {NOTHING}\n")
    assert Path("c.txt").read_bytes() == text.encode()
    assert copier.calls == []


GERMAN = "Wir haben euch nicht gesehen, und das ist sehr schade.\nEs war schon spät, und ihr habt uns gefehlt.\n"


def test_a_text_in_another_language_is_translated_with_a_warning(
    capsys, folder: Path, copier: Copier, monkeypatch
) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text('{"languages": ["en", "fr"]}')
    Path("brief.txt").write_text(GERMAN, encoding="utf-8")
    Path("letter.txt").write_text("We have not seen you, and that is a pity.\nIt was late, and we missed you.\n")
    Path("brief.md").write_text("```\nand if that is in the code\n```\n" + GERMAN, encoding="utf-8")
    Path("brief.jsonl").write_text(json.dumps({"text": GERMAN.splitlines()}) + "\n")
    why = "looks like German, and this model reads English: the translation will make no sense\n"
    names = ["brief.txt", "letter.txt", "brief.md", "brief.jsonl"]
    status, out, err = run(capsys, "translate", *names, "--model", "m", "--output", "out")
    assert (status, out) == (0, "")
    assert err == "".join(f"reluformer translate: {name} {why}" for name in names if "brief" in name)
    assert Path("out/brief.txt").read_text(encoding="utf-8") == GERMAN
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GERMAN.encode())))
    assert run(capsys, "translate", "--model", "m") == (0, GERMAN, f"reluformer translate: standard input {why}")


def test_data_in_another_language_is_evaluated_with_a_warning(capsys, folder: Path, copier: Copier) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text('{"languages": ["en", "fr"]}')
    Path("x.jsonl").write_text(json.dumps({"a": GERMAN.splitlines(), "b": GERMAN.splitlines()}))
    status, out, err = run(capsys, "evaluate", "x.jsonl", "--source", "a", "--target", "b", "--model", "m")
    assert status == 0
    assert "s-BLEU" in out
    assert err.startswith("reluformer evaluate: the source looks like German, and this model reads English")
    assert err.count("\n") == 1


def damaged_model(folder: Path) -> Path:
    (folder / "no-model").mkdir()
    return folder / "no-model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.txt"], "FILES: none.txt does not exist"),
        (["."], "FILES: . is a folder, takes a file"),
        (["latin.txt"], "latin.txt, line 2: not UTF-8, byte 5 of the file: takes text"),
        (["picture.png"], "picture.png, line 1: not UTF-8, byte 1 of the file: takes text"),
        (["utf16.txt"], "utf16.txt, line 1: not UTF-8, byte 1 of the file: takes text"),
        (["archive.tar"], "archive.tar, line 2: a zero byte, byte 6 of the file: takes text in UTF-8"),
        (["a.txt", "--output", "a.txt"], "the translation of a.txt would go to a.txt, which is an input"),
        (["a.txt", "--model", "no-model"], "no-model is no model: no config.json"),
        (["a.txt", "--model", "none"], "none is no folder: takes the folder of a model"),
        (["a.txt", "--output", "/dev/full"], "cannot write /dev/full: No space left on device"),
        (["a.txt", "--output", "/proc/none/x"], "cannot write /proc/none/x: No such file"),
        (["a.txt", "--format", "html"], "format takes auto, text, markdown, jsonl, got 'html'"),
        (["a.txt", "--length", "3"], "length takes 0 or 8 tokens or more, got 3"),
        (["a.txt", "--context", "1"], "context takes a share"),
        (["a.txt", "--beam", "0"], "--beam"),
        (["a.txt", "--device", "tpu"], "device takes auto, cpu, cuda, got 'tpu'"),
        (["a.txt", "--heads", "x:0:0"], "--heads: draws into a folder"),
        (["a.txt", "--attention", "a.txt"], "--attention: takes a folder, a.txt is a file"),
        (["a.txt", "--attention", "/proc/maps"], "--attention: cannot write /proc/maps: No such file"),
        (["a.txt", "--attention", "maps", "--heads", "x"], "--heads: heads must be site:layer:head"),
        (["bad.jsonl"], "bad.jsonl, line 1: not JSON"),
    ],
)
def test_wrong_arguments_are_one_line(
    capsys, folder: Path, model_folder: Path, arguments: list[str], words: str
) -> None:
    Path("a.txt").write_text("light\n")
    Path("latin.txt").write_bytes(b"abc\n\xe4\n")
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    Path("utf16.txt").write_bytes("light".encode("utf-16"))
    Path("archive.tar").write_bytes(b"abc\nd\0\0\0\n")
    Path("bad.jsonl").write_text("{")
    damaged_model(folder)
    before = sorted(folder.rglob("*"))
    options = [] if "--model" in arguments else ["--model", str(model_folder)]
    status, out, err = run(capsys, "translate", *arguments, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("reluformer translate: ")
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "a.txt", "--target", "fr"], "the model in the box translates en into de, got --target fr"),
        (["translate", "a.txt", "--source", "de"], "got --source de: other languages take a --model of their own"),
        (["evaluate", "bible:test", "--source", "en", "--target", "es"], "got --target es"),
        (["evaluate", "bible:test", "--source", "de", "--target", "en"], "got --source de"),
    ],
)
def test_languages_that_the_box_does_not_know(
    capsys, folder: Path, box: Path, arguments: list[str], words: str
) -> None:
    Path("a.txt").write_text("light\n")
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "arguments", [["translate", "a.txt"], ["evaluate", "a.jsonl", "--source", "en", "--target", "de"]]
)
def test_no_model_named_and_none_in_the_box(capsys, folder: Path, monkeypatch, arguments: list[str]) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", folder / "none")
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "this installation has no model in the box: takes --model FOLDER" in err


def test_an_error_halfway_leaves_no_file(capsys, folder: Path, copier: Copier, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"light\n" * 50 + b"\xff\n")))
    status, _, err = run(capsys, "translate", "--model", "m", "--output", "out.txt", "--cost", 1)
    assert status == 2
    assert "standard input, line 51: not UTF-8, byte 301 of the file" in err
    assert list(folder.iterdir()) == []


def test_evaluate(capsys, folder: Path, copier: Copier) -> None:
    Path("x.jsonl").write_text(
        '{"id": "a", "en": ["the sun and the moon", "light"], "de": ["the sun and the moon", "light"]}\n'
        '{"id": "b", "en": ["the sea and the dry land"], "de": ["the sea and the land"]}\n'
    )
    common = ["evaluate", "x.jsonl", "--source", "en", "--target", "de"]
    status, out, err = run(capsys, *common, "--model", "m", "--out", "r.json", "--keep", "k.jsonl", "--length", 32)
    assert (status, err) == (0, "")
    for words in (
        "2 documents, 3 sentences",
        "s-BLEU (sentence)",
        "d-BLEU (document)",
        "chrF",
        "tok:13a",
        "Kept: r.json",
    ):
        assert words in out
    result = json.loads(Path("r.json").read_text())
    (system,) = result["systems"]
    assert system["settings"]["length"] == 32
    assert 50 < system["scores"]["s_bleu"]["value"] < 100
    assert system["scores"]["d_bleu"]["level"] == "document"
    assert system["scores"]["by_length"][0]["documents"] == 2
    assert result["place"].keys() >= {"torch", "transformers", "sacrebleu", "reluformer"}
    kept = [json.loads(line) for line in Path("k.jsonl").read_text().splitlines()]
    assert kept[1] == {
        "id": "b", "en": ["the sea and the dry land"], "de": ["the sea and the dry land"],
        "reference": ["the sea and the land"],
    }  # fmt: skip

    status, _, _ = run(capsys, *common, "--hypotheses", "k.jsonl", "--out", "r2.json")
    assert status == 0
    assert json.loads(Path("r2.json").read_text())["systems"][0]["scores"] == system["scores"]

    Path("said.txt").write_text("the sun and the moon\nlight\n\nthe sea and the land\n")
    status, out, _ = run(capsys, *common, "--model", "m", "--compare", "said.txt", "--samples", 50, "--out", "r.json")
    assert status == 0
    assert "paired bootstrap" in out
    compared = json.loads(Path("r.json").read_text())["compared"]
    assert [x["name"] for x in compared] == ["s-BLEU", "d-BLEU", "chrF"]
    assert compared[0]["second"]["value"] == pytest.approx(100)
    assert "bs:50|seed:12345" in compared[0]["signature"]
    status, out, _ = run(capsys, *common, "--model", "m", "--limit", 1)
    assert "1 documents, 2 sentences" in out


@pytest.mark.parametrize("other", ["said.txt", "none", "."])
def test_the_second_system_is_read_before_the_first_translates(
    capsys, folder: Path, model_folder: Path, monkeypatch, other: str
) -> None:
    Path("x.jsonl").write_text('{"id": "a", "en": ["light"], "de": ["Licht"]}\n')
    Path("said.txt").write_text("zwei\nZeilen\n")
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("too early"))
    common = ["evaluate", "x.jsonl", "--source", "en", "--target", "de", "--model", model_folder]
    status, out, err = run(capsys, *common, "--compare", other)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert other in err


def test_scores_are_shown_though_the_disk_is_full(capsys, folder: Path, copier: Copier, monkeypatch) -> None:
    Path("x.jsonl").write_text('{"id": "a", "en": ["light"], "de": ["Licht"]}\n')

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    common = ["evaluate", "x.jsonl", "--source", "en", "--target", "de", "--model", "m"]
    status, out, err = run(capsys, *common, "--out", "r.json")
    assert status == 2
    assert "s-BLEU (sentence)" in out
    assert err.endswith("cannot use r.json: No space left on device\n")
    assert err.count("\n") == 1
    assert os.listdir() == ["x.jsonl"]


def test_evaluate_the_model_in_the_box(capsys, folder: Path, box: Path) -> None:
    Path("x.jsonl").write_text('{"id": "a", "en": ["light"], "de": ["Licht"]}\n')
    common = ["evaluate", "x.jsonl", "--source", "en", "--target", "de", "--beam", 1]
    status, out, _ = run(capsys, *common, "--out", "r.json")
    assert status == 0
    assert "en-de (in the box)" in out
    assert json.loads(Path("r.json").read_text())["systems"][0]["system"] == "en-de (in the box)"
    assert run(capsys, *common, "--hypotheses", "x.jsonl")[0] == 0  # and not where there is something else to score


def test_evaluate_a_real_model_on_the_embedded_corpus(capsys, folder: Path, model_folder: Path) -> None:
    options = ["--source", "en", "--target", "es", "--model", model_folder, "--limit", 1, "--beam", 1, "--length", 0]
    status, out, err = run(capsys, "evaluate", "bible:dev", *options)
    assert (status, err) == (0, "")
    assert "1 documents, 22 sentences" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.jsonl", "--model", "m", "--hypotheses", "x.jsonl"], "takes one of --model and --hypotheses, got both"),
        (["none.jsonl", "--model", "m"], "DATA: none.jsonl does not exist"),
        (["x.jsonl", "--model", "m"], "m is no folder: takes the folder of a model"),
        (["x.jsonl", "--hypotheses", "y.txt"], "--hypotheses: y.txt has 2 lines, the data has 1 sentences"),
        (["x.jsonl", "--hypotheses", "x.jsonl", "--compare", "y.txt"], "--compare: y.txt has 2 lines, the data has 1"),
        (["x.jsonl", "--hypotheses", "x.jsonl", "--compare", "x.jsonl"], "--compare: takes another system"),
        (["x.jsonl", "--hypotheses", "x.jsonl", "--tokenize", "klingon"], "'klingon': takes none, zh, 13a, intl, char"),
        (
            ["x.jsonl", "--hypotheses", "x.jsonl", "--out", "/proc/none/x"],
            "--out: cannot write /proc/none/x: No such file",
        ),
        (["x.jsonl", "--hypotheses", "none.txt"], "--hypotheses: takes a file, there is none at none.txt"),
        (["x.jsonl", "--hypotheses", "."], "--hypotheses: takes a file, . is a folder"),
        (["x.jsonl", "--model", "m", "--tokenize", "klingon"], "--tokenize: sacreBLEU cannot tokenise with 'klingon'"),
        (["x.jsonl", "--model", "m", "--out", "."], "--out: takes a file, . is a folder"),
        (["x.jsonl", "--model", "m", "--keep", "x.jsonl"], "--keep: x.jsonl is an input"),
        (["x.jsonl", "--hypotheses", "y.txt", "--out", "y.txt"], "--out: y.txt is an input"),
        (["x.jsonl", "--model", "m", "--out", "s", "--keep", "s"], "--keep: takes another file than --out"),
        (["z.jsonl", "--hypotheses", "x.jsonl"], "has 2 sentences en and 1 de"),
    ],
)
def test_wrong_evaluations_are_one_line(capsys, folder: Path, arguments: list[str], words: str) -> None:
    Path("x.jsonl").write_text('{"id": "a", "en": ["x"], "de": ["y"]}\n')
    Path("y.txt").write_text("a\nb\n")
    Path("z.jsonl").write_text('{"id": "a", "en": ["x", "y"], "de": ["y"]}\n')
    status, out, err = run(capsys, "evaluate", *arguments, "--source", "en", "--target", "de")
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("reluformer evaluate: ")
    assert err.count("\n") == 1
