"""The server's side of a text that is being written: a bundle, used for some positions at a time.

The bundle is consumed when the conversation begins, before any position is run, and what has been run so far is in
memory only. So a crash, of either side, ends the conversation: nothing of its randomness is ever used again, and the
client begins another one with what it has as its prompt.
"""

from __future__ import annotations

from comet_mpc.engine.share import SERVER
from comet_mpc.engine.windows import Window, WindowSession
from comet_mpc.errors import ConfigurationError, ContextFull
from comet_mpc.models.writing.model import DROPPED, Places, WritingModel
from comet_mpc.net.channel import Channel
from comet_mpc.offline.bundle import Bundle
from comet_mpc.service.deployment import Deployment
from comet_mpc.service.messages import Step


class Writing:
    """One conversation. The bundle is read whole here, so its file may be closed then."""

    def __init__(
        self, deployment: Deployment, model: WritingModel, channel: Channel, bundle: Bundle, positions: int
    ) -> None:
        self._model, self._weights, self._positions = model, deployment.weights, positions
        plan = deployment.programs.conversation(positions)
        self._session = WindowSession(SERVER, channel, deployment.source.open(bundle, self._weights), plan)
        self._places = Places()

    def check(self, step: Step) -> tuple[Window, Places]:
        """What a step is for. Raises if it cannot be done; nothing has changed then."""
        first = self._session.position
        if first + step.size > self._positions:
            raise ContextFull(
                f"{step.size} more positions after {first}, and this conversation was prepared for {self._positions}"
            )
        places = self._places.after(step.size, step.kept)
        if DROPPED in places.all and not self._model.drops:
            raise ConfigurationError("this model takes no drafts: all positions of the last run are to count")
        return Window(first, first + step.size, self._positions), places

    def run(self, window: Window, places: Places) -> None:
        """The rounds of a step."""
        self._places = places
        self._model.step(self._session.begin(window.size), places.all)(self._session, self._weights)
        self._session.end_program()
