"""The command ``reluformer inspect``: parse the options, measure, print and save."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer

from reluformer.data.files import DataError, check_writable, open_bytes
from reluformer.data.language import doubt
from reluformer.memory import Attention
from reluformer.pretrained import languages_of, model_or_default, name_of
from reluformer.report.maps import MOST_TOKENS, AttentionMap, HeadChoice, attention_maps
from reluformer.report.measure import memory_report
from reluformer.report.watch import places

LONGEST = 1 << 20  # most bytes of a text: a model would take days for more, and a pipe may have no end
_FILE = re.compile(r"\S+\.(txt|md|jsonl?|csv|tsv)")  # the name of a file: no sentence looks like this


def inspect(
    text: Annotated[str, typer.Argument(help="what to translate: a text, a file, or - for standard input")],
    model: Annotated[
        str | None,
        typer.Option(help="folder or name of a model, as transformers loads it; by default the one in the box"),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="its translation, text or file; without it, what the model says greedily")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="heads to draw, site:layer:head, * for all; by default head 0 of every site's last layer"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for report.json and the attention maps")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON, and nothing else")] = False,
) -> None:
    """Show what every memory of a model does with a text: mass, entropy, sparsity, and maps of its attention."""
    source = _read("TEXT", text)
    wanted = None if target is None else _read("--target", target)
    choices = _choices(heads, out)
    if out is not None:
        import matplotlib  # noqa: F401  # missing? Better said before the measuring than after

        if out.exists() and not out.is_dir():
            raise typer.BadParameter(f"takes a folder, {out} is a file", param_hint="--out")
        try:
            check_writable(out)
        except DataError as error:
            raise typer.BadParameter(str(error), param_hint="--out") from None
    chosen = _chosen_model(model)
    tokenizer, network = _load(chosen)
    if what := doubt([source], languages_of(Path(chosen))):
        print(f"reluformer inspect: the text {what}", file=sys.stderr)
    try:
        batch, said = _batch(tokenizer, network, source, wanted)
        maps = [] if out is None else _maps(tokenizer, network, batch, choices)
        report = memory_report(network, batch)
    except ValueError as error:  # a head that does not exist or a text that is too long, as its message says
        raise typer.BadParameter(str(error)) from None
    about = {"model": name_of(Path(chosen)), "source": source, "target": said}
    report = dataclasses.replace(report, about=about)
    try:
        paths = [] if out is None else report.save(out, maps)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from None
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    from reluformer.console import console

    screen = console()
    for name in ("source", "target"):
        screen.print(f"{name}: {about[name]}", highlight=False, markup=False)
    screen.print(report.table())
    screen.print(report.length_table())
    kept = f"Kept: {', '.join(map(str, paths))}" if paths else "Not kept; --out DIR writes report.json and maps as PNG."
    screen.print(kept, style="dim", highlight=False, markup=False, soft_wrap=True)


def _read(argument: str, text: str) -> str:
    """The text itself, or the content of the file or of standard input that it names."""
    name = "standard input" if text == "-" else text
    try:
        if text == "-":
            if sys.stdin is None:
                raise typer.BadParameter("standard input is closed", param_hint=argument)
            text = _bounded(sys.stdin.buffer, name)
        elif os.path.exists(text) and not os.path.isdir(text):  # a folder may be named like a word of text
            with open_bytes(Path(text)) as file:
                text = _bounded(file, name)
        elif _FILE.fullmatch(text):
            raise typer.BadParameter(f"there is no file {text!r}", param_hint=argument)
        text.encode("utf-8")  # an argument may hold bytes that are not text, too
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint=argument) from None
    except OSError as error:
        raise typer.BadParameter(f"cannot read {name}: {error.strerror or error}", param_hint=argument) from None
    except UnicodeDecodeError as error:
        problem = f"not UTF-8, byte {error.start + 1} of {name}: takes text in UTF-8"
        raise typer.BadParameter(problem, param_hint=argument) from None
    except UnicodeEncodeError:
        raise typer.BadParameter("takes text in UTF-8", param_hint=argument) from None
    text = text.removeprefix("\ufeff").strip()
    if not text:
        raise typer.BadParameter("takes a text, got an empty one", param_hint=argument)
    return text


def _bounded(file: IO[bytes], name: str) -> str:
    content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise DataError(f"{name} is longer than {LONGEST:,} bytes: takes a text that is read at once")
    return content.decode("utf-8")


def _chosen_model(model: str | None) -> str:
    """The given model or, for None, the one in the box."""
    if model is not None:
        return model
    try:
        return str(model_or_default(None))
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from None


def _choices(heads: str | None, out: Path | None) -> list[HeadChoice] | None:
    if heads is None:
        return None
    if out is None:
        raise typer.BadParameter("draws into a folder: give --out too", param_hint="--heads")
    try:
        return [HeadChoice.parse(part) for part in heads.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--heads") from None


def _load(name: str) -> tuple[Any, Any]:
    """Tokeniser and model, the latter on the GPU if there is one."""
    from huggingface_hub.utils import logging as hub_logging
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging

    import reluformer.models  # noqa: F401  # so that the Auto classes know ours

    if name.startswith((".", os.sep)) and not os.path.isdir(name):  # a path: do not ask the hub
        raise typer.BadParameter(f"takes a folder or a name, there is no folder {name!r}", param_hint="--model")
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise typer.BadParameter(f"{name} is no model: no config.json", param_hint="--model")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # what goes wrong is one line, and alone
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        network = AutoModelForSeq2SeqLM.from_pretrained(name).to(device).eval()
        places(network)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise typer.BadParameter(f"cannot inspect {name!r}: {reason}", param_hint="--model") from None
    return tokenizer, network


def _batch(tokenizer: Any, network: Any, source: str, target: str | None) -> tuple[dict[str, Any], str]:
    """Batch of one source and its target, shifted right by one as in training, and the text of the target."""
    encoded = tokenizer(source, return_tensors="pt").to(network.device)
    batch = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    if target is not None:
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(network.device)
        return {**batch, "decoder_input_ids": network.prepare_decoder_input_ids_from_labels(labels)}, target
    length, trained = batch["input_ids"].shape[1], getattr(network.config, "trained_length", None)
    if trained and length > trained:
        line = f"the text has {length:,} tokens, and the model learned from {trained:,} at most: this may take long"
        print(f"reluformer inspect: {line}", file=sys.stderr)
    longest = 2 * length + 16
    said = network.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=longest)
    # The last token is left out: nothing follows it, so it is no query.
    return {**batch, "decoder_input_ids": said[:, :-1]}, str(tokenizer.decode(said[0], skip_special_tokens=True))


def _maps(tokenizer: Any, network: Any, batch: dict[str, Any], choices: list[HeadChoice] | None) -> list[AttentionMap]:
    source, target = (
        tokenizer.convert_ids_to_tokens(batch[name][0].tolist()) for name in ("input_ids", "decoder_input_ids")
    )
    chosen = usual_choices(network, max(len(source), len(target))) if choices is None else choices
    return attention_maps(network, batch, chosen, source_tokens=source, target_tokens=target)


def usual_choices(network: Any, length: int) -> list[HeadChoice]:
    """Head 0 of the last layer of every site; empty for a text that is too long to draw."""
    if length > MOST_TOKENS:
        return []
    attention = [place for memory, place in places(network).items() if isinstance(memory, Attention)]
    last = {place.site: max(p.layer for p in attention if p.site == place.site) for place in attention}
    return [HeadChoice(site, layer, 0) for site, layer in last.items()]
