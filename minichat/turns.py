"""What the model reads: all that was said in a chat before the reply that is wanted."""

from minichat.backends.protocol import Prompt
from minichat.chats.model import Chat
from minichat.chats.store import Store

Parts = tuple[tuple[int, int], ...]  # of the prompt: the id of each message, -1 for none, and its length


def prompt_of(chat: Chat, store: Store, *, template: bool) -> tuple[Prompt, Parts]:
    """The prompt, and of whom its parts are. Without a template it is the messages' texts."""
    newest = chat.messages
    earlier = store.older(chat.id, newest[0].id, chat.earlier) if chat.earlier else []
    said = [*earlier, *newest[:-1]]
    if not template:
        return "".join(each.whole for each in said), tuple((each.id, len(each.whole)) for each in said)
    opening = [{"role": "system", "content": chat.system}] if chat.system else []
    said = [message for message in said if message.text]
    turns = [{"role": message.role, "content": message.whole} for message in said]
    own = [(-1, 0) for _ in opening]
    return [*opening, *turns], (*own, *((each.id, len(each.whole)) for each in said))
