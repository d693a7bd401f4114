"""A client that writes a text, a token for every line of its input, and says what it does before it does it.

    python writing_client.py ADDRESS KEYS CACHE TOKENS PROMPT

PROMPT is a text, or numbers of tokens in JSON. It prints JSON lines: `named` is a bundle that the server is told of,
`token` one that was written, `stopped` all tokens of a text that the server has ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from comet_mpc.errors import WritingStopped
from comet_mpc.net.channel import Channel
from comet_mpc.service import connection
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Begin
from support.waiting import PATIENCE

__all__ = ["PROGRAM"]

PROGRAM = Path(__file__)


def _note(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    address, keys, cache, tokens, prompt = sys.argv[1:]
    module: Any = connection
    say = module.say

    def noted(channel: Channel, message: Any) -> None:
        if isinstance(message, Begin):
            _note(named=message.bundle_id)
        say(channel, message)

    module.say = noted
    begin = json.loads(prompt) if prompt.startswith("[") else prompt
    with Client(address, keys=keys, cache=cache, timeout=PATIENCE, ready=0) as client:
        try:
            for token in client.generate(begin, tokens=int(tokens)):
                _note(token=token.id)
                sys.stdin.readline()
        except WritingStopped as stopped:
            _note(stopped=stopped.tokens)


if __name__ == "__main__":
    main()
