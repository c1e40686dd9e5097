"""A failed reply offers no retry if its message is too long for the model. Here those are found."""

from contextlib import suppress
from dataclasses import replace

from engine.api.errors import EngineError
from engine.api.snapshot import Snapshot
from minichat.chats.model import Message
from minichat.features.feature import Context
from minichat.session.conversation import Conversation
from minichat.session.fitting import fit_of, small


class Retries:
    """Measures each failed message once per engine and settings; only the newest message can be retried."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._measured: dict[
            int, tuple[int, tuple[object, ...]]
        ] = {}  # by chat: message, what it depended on

    def look(self) -> None:
        """Measure the failed messages of the visible chats, if anything has changed."""
        context, shot = self._context, self._context.engine.latest
        if context.lifecycle.alive and shot is not None:
            for each in context.workspace.shown:
                if failed := _failed(each):
                    self._measure_again(each, failed, shot)

    def _measure_again(self, conversation: Conversation, failed: Message, shot: Snapshot) -> None:
        chat = conversation.chat
        now = failed.id, (chat.params, chat.system, shot.model, shot.max_context)
        before = self._measured.get(chat.id)
        if before == now:
            return
        self._measured[chat.id] = now
        if failed.refused and (before is None or before[0] != failed.id):
            return  # the engine has just refused it
        self._context.app.run_worker(self._measure(conversation, failed, shot), group="retries")

    async def _measure(self, conversation: Conversation, failed: Message, shot: Snapshot) -> None:
        asked, refused = conversation.chat.messages[-2], False
        if asked.role == "user" and not small(conversation, asked.whole, shot):
            with suppress(EngineError):  # the retry reports it
                refused = not (await fit_of(conversation, asked.text, asked.attachments, shot)).fits
        if conversation.chat.messages[-1] is failed and refused != failed.refused:
            message = conversation.chat.messages[-1] = replace(failed, refused=refused)
            if conversation.view is not None:
                conversation.view.settle_message(message)
            self._context.workspace.label()


def _failed(conversation: Conversation) -> Message | None:
    """Its last message, if that failed and has a question before it."""
    messages = conversation.chat.messages
    return messages[-1] if len(messages) > 1 and messages[-1].state == "failed" else None
