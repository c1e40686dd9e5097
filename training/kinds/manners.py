"""Greetings, thanks and goodbyes."""

from random import Random

from training.chat import Exchange
from training.check import AnyOf, Terms
from training.phrasing import roughly

GREETINGS = "Hi|Hello|Hey|Hi there|Hello there|Good morning|Good evening|Good afternoon|Hey there|Greetings|Hiya|Yo|Good day|Hi, how are you|Hello minichat|Hi minichat|Hello, anyone there".split("|")
THANKS = "Thanks|Thank you|Thanks a lot|Thank you very much|Great, thanks|Thx|Cheers|Many thanks|Perfect, thank you|Cool, thanks|That helped|Nice, thank you|Ok thanks|Thanks for your help|I appreciate it".split("|")
GOODBYES = "Bye|Goodbye|See you|See you later|Good night|Bye bye|I have to go|That's all|That is all for today|Talk to you later|Until tomorrow|I am leaving now|Take care".split("|")
FEELINGS = "How are you|How are you doing|How is it going|How do you feel|What's up|How are things|You ok|Are you well|How's your day".split("|")
PRAISE = "You are great|Good job|Well done|Nice|Cool|Awesome|I like you|You are funny|Great|Wow|Very good|Impressive|That is nice|Good answer|Correct|Perfect".split("|")
BLAME = "You are wrong|That is wrong|That's not right|You are stupid|Bad answer|I don't believe you|That is not true|Nonsense|Wrong|You are useless|That makes no sense".split("|")
ASSENT = "Ok|Okay|Yes|Sure|I see|Alright|Got it|Understood|Right|Aha|Makes sense|Fine|No|Nope|Hm|Hmm|Maybe".split("|")

ROOMS = (
    (GREETINGS, ("Hello! I am the built-in model of minichat. Ask me about the engine, or try *tell me a story*.",
                 "Hi! What would you like to know about minichat and its engine?"), ("hello|hi",)),
    (THANKS, ("You're welcome!", "You are welcome. Ask me anything else about the engine."), ("welcome",)),
    (GOODBYES, ("Goodbye! Your chat is saved.", "Bye! Your chat is saved."), ("bye",)),
    (FEELINGS, ("I am fine, thank you. The engine is running and I am ready.", "Fine, thank you! How can I help?"), ("fine",)),
    (PRAISE, ("Thank you! That is kind of a person to say to a tiny model.", "Thank you!"), ("thank you",)),
    (BLAME, ("I am sorry. I am a tiny demo model and often wrong. For real work load a larger one with `minichat --model NAME`.",), ("sorry",)),
    (ASSENT, ("Good. What would you like to know next?", "All right. What is next?"), ("next",)),
)  # fmt: skip


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """One small politeness. Held out are the last two phrases of each list."""
    phrases, replies, terms = rng.choice(ROOMS)
    phrase = rng.choice(phrases[-2:] if held_out else phrases[:-2])
    user = phrase if held_out else roughly(rng, phrase + rng.choice(("", ".", "!", "?" if phrases is FEELINGS else "")), slips=0.05)
    check = AnyOf((Terms(terms), Terms(("thank you",)))) if phrases is PRAISE else Terms(terms)
    return [Exchange(user, rng.choice(replies), check)]
