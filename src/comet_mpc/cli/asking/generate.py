"""`comet generate`: a text that is written privately, shown as it comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import (
    AcceptedModel,
    AnySource,
    Cache,
    ClientName,
    DealerAddress,
    JsonFile,
    Keys,
    ServerAddress,
    Timeout,
    WantedModel,
    option,
    wanted_model,
)
from comet_mpc.cli.tables import write_json
from comet_mpc.errors import ConfigurationError
from comet_mpc.files import read_utf8
from comet_mpc.models.writing.drafts import KnownTexts
from comet_mpc.models.writing.packages import writing
from comet_mpc.models.writing.sampling import Sampling
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.progress import Tick, bar
from comet_mpc.service.client import Client
from comet_mpc.service.writing.client import Token, Wanted
from comet_mpc.units import counted, human_bytes

_SAMPLING, _RANDOMNESS = "How tokens are picked", "Randomness"

Prompt = Annotated[str, typer.Argument(help="The beginning of the text.")]
Tokens = Annotated[int | None, option("At most so many tokens. Default: all that there is room for.", min=1)]
Temperature = Annotated[float, option("0: always the likeliest token. 1: as the model says.", _SAMPLING, min=0.0)]
TopK = Annotated[int, option("Only so many of the likeliest; 0: all.", _SAMPLING, min=0)]
TopP = Annotated[float, option("Only the likeliest that have so much probability together.", _SAMPLING)]
Penalty = Annotated[float, option("Above 1: tokens that are in the text already come less often.", _SAMPLING)]
Seed = Annotated[int | None, option("The same text again for the same seed.", _SAMPLING)]
Stop = Annotated[list[str] | None, option("End the text before this. May be given again.", _SAMPLING, "--stop")]
Drafts = Annotated[
    int,
    option(
        "Guess so many tokens before each run: fewer runs, but a server that cheats can learn of the prompt.",
        _RANDOMNESS,
        min=0,
        max=32,
    ),
]
DraftTexts = Annotated[
    Path | None,
    option(
        "With --drafts: guess by these texts, one on each line, and not by the text so far.",
        _RANDOMNESS,
        "--draft-texts FILE",
    ),
]


def generate(
    server: ServerAddress,
    prompt: Prompt,
    tokens: Tokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    drafts: Drafts = 0,
    draft_texts: DraftTexts = None,
    json: JsonFile = None,
    model: WantedModel = "",
    accept_model: AcceptedModel = "",
    keys: Keys = Path("keys"),
    name: ClientName = "client",
    cache: Cache = None,
    timeout: Timeout = 120.0,
    source: AnySource = None,
    dealer: DealerAddress = None,
) -> None:
    """Write a text after a prompt: the server learns neither of the two, and you do not learn its weights.

    The server learns how many tokens the prompt has, and how many are written. Each token is picked on this machine.
    """
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed
    )
    called, fingerprint = wanted_model(model)
    wanted: Wanted = {"tokens": tokens, "sampling": sampling, "stop": stop or (), "drafts": drafts}
    if draft_texts is not None and not drafts:
        raise ConfigurationError("--draft-texts goes with --drafts")
    known = [] if draft_texts is None else read_utf8(draft_texts).splitlines()

    def connected(progress: Tick) -> Client:
        client = Client(
            server, identity=TlsIdentity.find(keys.absolute(), name), timeout=timeout, ready=0,
            cache=cache.absolute() if cache is not None else None, source=source, dealer=dealer,
            model=called, fingerprint=fingerprint, accept_model=accept_model, progress=progress,
        )  # fmt: skip
        if known:
            tokenizer = writing(client.connect()).tokenizer
            wanted["drafter"] = KnownTexts(tokenizer.encode(line, 1 << 20).ids.tolist() for line in known if line)
        return client

    show_text(f"preparing with {server}", connected, prompt, wanted, json)


def show_text(
    what: str,
    connected: Callable[[Tick], contextlib.AbstractContextManager[Client]],
    prompt: str,
    wanted: Wanted,
    json: Path | None,
) -> None:
    """Writes a text, shows it as it comes, and what it cost.

    what: is done before. connected: gives the client, which tells how far its preparation is
    """
    written: list[Token] = []
    quiet = str(json) == "-"
    with contextlib.ExitStack() as stack:
        with bar(what, shown=human_bytes) as progress:
            progress(0, 0)
            client = stack.enter_context(connected(progress))
            made = client.generate(prompt, **wanted)
            stack.enter_context(contextlib.closing(made))
            first = next(made)
        try:
            for token in chain([first], made):
                if not quiet:
                    typer.echo(printable(token.text if written else prompt + token.text), nl=False)
                written.append(token)
        finally:  # after an error, too, what was written stands
            _conclude(prompt, written, client.source, json, quiet)


def printable(text: str) -> str:
    """Without anything that could steer a terminal: the tokens' spelling comes from the server."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _conclude(prompt: str, written: list[Token], source: str, json: Path | None, quiet: bool) -> None:
    """What it cost, a token."""
    first, count = written[0], len(written)
    online, rounds = sum(one.online_bytes for one in written), sum(one.rounds for one in written)
    seconds = sum(one.seconds for one in written)
    text = "".join(one.text for one in written)
    write_json(json, {
        "prompt": prompt, "text": text, "finish": written[-1].finish, "prompt_tokens": first.prompt_tokens,
        "online_bytes": online, "rounds": rounds, "seconds": seconds, "offline_bytes": first.offline_bytes,
        "offline_seconds": first.offline_seconds, "source": source, "tokens": [asdict(one) for one in written],
    })  # fmt: skip
    if quiet:
        return
    typer.echo()
    lines = [f"the prompt: {_spent(written[:1])}"]
    if count > 1:
        lines.insert(0, f"each token after the first: {_spent(written[1:])}")
    typer.echo(
        f"{counted(count, 'token')} after {counted(first.prompt_tokens, 'token')}\n"
        + "\n".join(lines)
        + f"\noffline: {human_bytes(first.offline_bytes)}, {first.offline_seconds:.2f} s\n"
        f"source of randomness: {source}",
        err=True,
    )


def _spent(tokens: Sequence[Token]) -> str:
    """On one of them, on average."""
    count = len(tokens)
    online, rounds, seconds = (
        sum(getattr(one, name) for one in tokens) / count for name in ("online_bytes", "rounds", "seconds")
    )
    return f"{seconds:.2f} s, {human_bytes(online)}, {rounds:.0f} rounds"
