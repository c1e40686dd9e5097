"""Greetings, thanks, goodbyes, moods, and small statements that ask for nothing."""

import tomllib
from dataclasses import dataclass
from random import Random

from training.chat import Exchange
from training.check import Terms
from training.kinds.slots import any_word
from training.lexicon import TEXT, is_held_out
from training.phrasing import any_of, fill, normal, pictured, roughly

# Phrases separated by bars; the last four of each list are held out.
_PHRASES = {
    "greetings": """A warm hello|A warm welcome|A big hello|A friendly hello|A kind hello|Warm greetings|My warmest greetings|A warm good morning|A loud hello|A cheerful hello to you|Hey, what a nice day|What a nice day|What a lovely day, hello|Hello, what a beautiful day|Hi, what a lovely morning|Hey, what a fine day|sup|wassup|hiii|helloooo|hey man|hey dude|yo yo|hi bro|hullo|g'day|mornin|hey there buddy|hii|heyo|ello|hi hi|whats new|what's new|yooo|hey bot|sup bro|
        Hello, how do you do|Hey, a quick hello|Hi, I just opened this|Hello, I just started|Hey, nice to be here|
        Hello, nice weather today|Hey, the sun is out|Hi, the rain has stopped|Hello, the sun is shining|Hi, good evening|Hey, good morning|Hello computer|Hi computer|Hello machine|Hi bot|
        Hello, dear model|Dear model, hello|Good to be here|A hello from me|Just saying hello|I wanted to say hello|
        Hello, it is me again|Hey, I have time again|Happy to be here|Hi, what a day|A nice day to you|
        Good morning, friend|Hello, hello|
        Hey, how nice to see you|Hello, here I am|Hi, here I am again|Good morning, model|Good evening to you|Greetings, friend|Hello once again|Hi all|Hey, hello|A very good morning|Well hi there|Hello, good to be here|Salute|Hi, minichat here I come|Good to meet you
        |Hi|Hello|Hey|Hi there|Hello there|Good morning|Good evening|Good afternoon|Hey there|Greetings|Hiya|Yo|Good day
        |Hello minichat|Hi minichat|Hello, anyone there|Hello you|Hi again|Hello again|Hey you|Morning|Evening|Hello friend|Hi my friend
        |Nice to meet you|Pleased to meet you|Hey model|Hello model|Hallo|Heya|Hello, is anybody here|Hi, I am new here|Welcome|Well hello|Hey buddy
        |Hi everyone|Good morning to you|Hey hey|Hello my friend|Hey, good to see you|Hi once more|Good to see you|Hello hello|A good day to you|Hello to you|Hi, nice to see you|Hey, I am back|Hello, I am back|Hi, me again|Hello, nice to see you|Good afternoon to you|Hello there, friend
        |Hi, good to have you here|Hello, sleepyhead|Hey, it is me|Good day, model|Hi, nice to be here|Hello from me|Hey, lovely morning out there|A hearty hello""",
    "thanks": """I am in your debt|I am deeply in your debt|I am very thankful|I am so thankful|I am thankful|I am really thankful|I am very grateful|I am so grateful to you|I owe you thanks|I owe you one|I am full of thanks|I can only thank you|My sincere thanks|tysm|ty so much|thanks bro|thanks dude|thnx|thank u|thank u so much|thanx|ta|tyvm|thx a lot|cool thx|thanks buddy|great thx|thx for that|
        Thanks, that is what I wanted|Thank you, I have learned something|Thanks, I learned a lot|
        Thank you, that was good|I want to thank you|Let me thank you|Thanks for telling me|Thanks, that is it|
        Thank you for your patience|Thanks, that was nice|Thanks, I got what I need|So kind of you, thanks|
        Thank you, that is enough for now|Thanks, that is what I needed|Thanks for your time|
        Thank you for the quick answer|Thanks for being here|Much obliged|Thanks, that was fast|Good answer, thanks|
        You helped me, thank you|Thanks, that makes it clear|
        Thank you for everything|Thanks, you are kind|Thanks, very good|Thank you, well explained|Thanks, now I know|Thanks, that helped|Many thanks to you|I thank you|Thank you for helping|Thanks for that|Thank you for that|I owe you thanks|Big thanks|Thanks, perfect|Thanks for the help, friend|Thank you, that is enough
        |Thanks|Thank you|Thanks a lot|Thank you very much|Great, thanks|Thx|Cheers|Many thanks|Perfect, thank you|Cool, thanks
        |Nice, thank you|Ok thanks|I appreciate it|Thanks for your help|Thank you so much|Thanks so much|Thank you kindly|Thank you for the answer
        |Thanks for the answer|Thanks for explaining|Thanks, that is clear|Thank you, I understand|Thanks, got it|Thanks again|Ty|A thousand thanks
        |Thanks a million|Thank you for your time|I am grateful|Much appreciated|Thanks mate|Thanks for everything|Great help, thank you
        |Thank you, that was it|Thanks, very kind|Thank you, very nice|Good, thanks|Thanks a bunch|Thanks, you helped me|Thank you, very helpful|All my thanks|Thanks, that will do|Thank you, friend|Thanks, great|Thank you, great answer|Oh thanks|Oh, thank you|Thanks, I see|My thanks to you|Thank you, that is all I needed|Thanks, wonderful
        |Thanks, all clear now|Thank you, that is all|Thanks, good to know|Thank you, nice answer|Thanks, that was quick|I owe you a lot|Thanks, you did it|Thank you for telling me""",
    "goodbyes": """ttyl|g2g|brb|night night|cu|later dude|bye bro|gotta go|cu later|see ya|see ya later|cheerio|peace out|laters|nite|good nite|im off|c u|byee|byeee|
        Ok, I am done|I have had enough for today|That is enough, bye|Ok, good night|I am tired, good night|
        Time for bed|Bye, it was nice|See you another day|I will go to sleep|See you in the morning|Let us end here|
        We are done here|Ok, see you|Bye, good night|I will leave you now|Leaving now|Signing off|Over and out|
        I will quit now, bye|Goodbye, sleep well|Bye, until next time|I have to end here|Good night and thanks|
        Have a good day|Have a nice evening|See you then|
        I am going now|I am off to bed|I will stop now|I must leave you|It is time to leave|Goodbye and thanks|Until then|Until we meet again|We talk tomorrow|Let us talk tomorrow|I will come back later|I will see you|I have to run|Good night to you|Off I go|That was it for today|I am finished for today|Enough for today|I will close this now|I say goodbye|Bye, take care
        |Bye|Goodbye|See you|See you later|Good night|Bye bye|I have to go|That's all|That is all for today|Talk to you later|I am leaving now
        |Take care|Until tomorrow|See you tomorrow|See you soon|I must go|I need to go now|Got to go|I am off|I am going home|Farewell|So long|Ciao
        |Until next time|Bye for now|Goodbye for now|Have a nice day|Have a good evening|Sleep well|Bye, thanks|Ok bye|I am done for today|Later
        |I am leaving|I will be back|Talk later|I have to leave you now|See you around|Bye then|Bye, see you|I go now|Time to go|I have to stop now|Good night, sleep well|Goodbye, my friend|That was all, bye|See you next week|I will go now|I will leave now|Let us stop here|See you next time|Goodbye then|I have to sleep|Bye, until later|Good night then
        |Good night, model|I am done, bye|That is it, goodbye|Bye, have a nice day|Have a good night|I will be off now|Goodbye, see you soon|So, bye""",
    "feelings": """Are you happy with your day|How is the mood|Is your day good|How do you feel now|Are you feeling fine|
        Are you feeling good|Did you have a good day|Have you had a good day|How did you sleep|Hi there, how are you|
        Hope all is well|I hope you are fine|I hope you are doing well|How are you getting on|How is your mood|
        What about you, are you well|So how are you|Is it a good day|How are things with you|How are things going|
        How are you doing today|Are you feeling well|How do you feel today|Do you feel good|Is everything fine|Are you all right|How are things today|How is your day going|How is it with you|And you, how are you|Are things good|How well are you|Is it going well|Are you in a good mood|Hey, how are you doing|Good day so far|How is your evening
        |How are you|How are you doing|How is it going|How do you feel|What's up|How are things|You ok|Are you well|How's your day
        |How are you today|Hi, how are you|Hello, how are you|How do you do|How have you been|How is life|Are you ok|Are you fine|Is everything ok
        |All good|How goes it|How was your day|Feeling good|What is up|Everything alright|How are you feeling|How's it going|Are you alright|How's life|How are you now|How have things been|Are you good|Doing well|And how are you|How are you, friend|Is all well|How are you this morning|Is all good|All well|Are things well|Is everything well|Everything good|How are you tonight|How is everything|Are you doing fine
        |How are you these days|Hope you are well|Are you having a good day|How do things go|Hello, is fortune smiling at you|How is it going today|Are you doing well|How are you, model""",
    "praise": """ur cool|u r great|thats cool|thats nice|nice one bro|good bot|sick|dope|ur smart|love it|u rock|you rock|thats awesome|neat stuff|
        You are so smart|You are very smart|You are very good|That is very clever|What a clever model|
        This is really nice|I like what you say|I like how you answer|You explain very well|Well explained|
        That was well said|Great explanation|Good explanation|Nice answer|Nice one|Such a good answer|
        You did that well|Really clever|You are very clever|I am happy with that|That is exactly right|
        That is a great answer|How nice of you|You are so helpful|That was quick|What a good model|How good you are|
        Good for you|
        You are really good|You are wonderful|What a nice answer|Great stuff|That is great|That is cool|I like that|I like your answer|This was helpful|Very helpful|You are helpful|That is impressive|Splendid|Marvellous|You know a lot|You are a good model|Good one|That is correct|You are right|I love you|Sweet|Neat|Great model|So clever
        |You are great|Good job|Well done|Nice|Cool|Awesome|I like you|You are funny|Great|Wow|Very good|Impressive|That is nice|Good answer
        |Correct|Perfect|That is right|Exactly|Excellent|Amazing|Brilliant|Fantastic|You are smart|You are clever|You are nice|You are cute
        |That was helpful|That helped|That helped a lot|Nice work|Great work|Great answer|Good work|Right answer|You are the best|I love it|Lovely|Superb
        |That was good|You did well|Bravo|Nicely done|What a good answer|You are good|That is a good answer|That was perfect|Really good|You are amazing|That was great|Well answered|This is great|You answer well|I am impressed|Very nice|Very cool|So good|Good model|That was nice of you|Well said
        |That was clever|You are very kind|What a great answer|Good stuff|How clever of you|How kind of you|How smart of you|How sweet of you|How thoughtful of you|How well you put that|You did great|That is really good|Such an exquisite response|A very good answer""",
    "blame": """you stink|this sucks|ur dumb|u r stupid|ur useless|that sucks|so dumb|wtf|wth|what the hell|this is crap|bad bot|you are trash|worst bot ever|ur wrong|thats wrong|no thats wrong|u r bad|
        You are not very smart|You are not smart|You are not clever|That is not a good answer|This is a bad answer|
        Your answers are bad|You don't know anything|You know nothing|What a silly answer|That is silly|
        That does not make sense|This makes no sense|That is not helpful|You did not help me|It is not true|
        It is wrong|That is so wrong|Wrong again|Still wrong|No, still wrong|You made an error|This is an error|
        That is the wrong answer|A wrong answer|A bad reply|Bad reply|That reply was bad|What a mess|I don't like it|
        I don't like this|You are a bad model|You did it wrong|Not what I wanted|
        You are not good|That is not good|This answer is bad|I do not like your answer|You are no help|This does not help|Not helpful|Not true|That is a lie|This is false|You are confused|You have it wrong|You are terrible|What a stupid answer|I am not happy with that|That is bad|No, not at all|This is a mistake|You failed|That answer is nonsense|That was not right|This was wrong|Your reply is wrong
        |You are wrong|That is wrong|That's not right|You are stupid|Bad answer|I don't believe you|That is not true|Nonsense|Wrong|You are useless
        |That makes no sense|You are bad|That was wrong|Not correct|That is not correct|Incorrect|This is wrong|You made a mistake|That is a mistake
        |You are not helpful|That did not help|That is not what I asked|I did not ask that|You don't understand|You do not understand me|That is nonsense
        |That is stupid|You are silly|You are dumb|Terrible|Rubbish|I hate you|Try harder|You are lying|That is false|Bad|This is nonsense|You got it wrong
        |That can't be right|That cannot be right|This can't be true|This is not right|You are mistaken|What a bad answer|That was a bad answer|Your answer is wrong|No, that is wrong|I think you are wrong|I don't think so|No, you are wrong|That seems wrong|You are talking nonsense|What nonsense|That is a bad answer|You are not right
        |Your answer makes no sense|You are wrong again|This was not helpful|What a mistake|This is not true|That is a wrong answer|You are not very clever|Bad model""",
    "assent": """k cool|kk thx|okey|okie|yea|ye|ya|nah|idk|dunno|whatever|meh|fair|true that|gotcha|alrighty|
        Ok, all right|Ok, understood|Yes, all right|Good, understood|I see, ok|I see, thanks for now|Now I see|
        Now I understand|I understand now|Ok, that is clear|Fine, ok|Right, fine|Yes, fine|Ok, good|Good, fine|Ok ok|
        Yes yes|Mhm|Uh huh|Yup|Okay cool|K|Kk|Ok good|Right you are|Good enough|I think I understand|I think so|
        Yes, that is it|That is it|Ok, let me think|Let me see|
        Ok, I get it|I get it|Very good then|Ok, next|Sure thing|Yes, sure|Ok, fine|Right, I see|All right|Alright then|Yes, I understand|So be it|Fair enough|Indeed|True|Ok thanks, no|Yes, good|Good, ok|I know|I guess|Sounds good|As you say|Okay, I see|Oh well|Oh ok
        |Ok|Okay|Yes|Sure|I see|Alright|Got it|Understood|Right|Aha|Makes sense|Fine|No|Nope|Hm|Hmm|Maybe|Yeah|Yep|Of course|Ok cool|Oh|Oh I see
        |I understand|That is clear|Ah|Ah ok|Interesting|Good to know|No thanks|Not now|Never mind|Well|So|And|Ok then|Very well|Hm ok|Ah I see|All clear|Good|Agreed|I agree|Yes please|Yes I see|Okay then|Right then|Ok I see|Fine by me|Fine with me|That is fine|That is ok|Ok with me|Good, go on|Yes, ok|Okay, good|Right, ok
        |Yes, I see|Ok, clear|Good, I understand|Okay, thanks for now|Right, ok then|Fine, thank you|I see now|All right, good""",
    "sorrow": """I feel down|I am down today|I'm not happy|I am not happy|I feel lonely|I feel sick|I feel stressed|
        My day was terrible|I had a terrible day|Today was bad|Today is a bad day|I am worried|I'm worried|
        I feel awful|I am in a bad mood|I'm in a bad mood|I slept badly|I am so sad|I'm very sad|Life is hard|
        I want to cry|I am upset|
        I'm sad|I am sad|I'm tired|I am tired|I feel bad|I am not well|I had a bad day|I'm bored|I am bored|I feel sad today|I am unhappy|I'm lonely|I am afraid|I am sick|I'm so tired
        |I feel alone|My day was bad|I am angry|I'm angry|I am a bit sad|I feel tired|I am very sad|I am very tired|I do not feel well|I'm not feeling well|I am stressed|I had a long day|I feel ill|It was a bad day|I am exhausted
        |I'm sad today|I feel very bad|I am lonely today|My day was not good""",
    "joy": """I feel well today|I feel well|I'm in a good mood|I feel very well|I'm feeling good|I am feeling great|What a good day|I had a wonderful day|
        Life is good|I'm so happy|I'm so glad|I am very glad|I feel happy|I feel happy today|
        Everything is fine with me|All is good with me|I'm full of joy|I am feeling fine|I am very well|I'm very well|
        Today was great|My day is good|
        I'm happy|I am happy|I feel good|I am glad|I had a good day|I feel great|I'm fine|I am fine|I am well|I'm doing well|I am doing fine|I am so happy|Today is a good day|I am in a good mood|I feel wonderful
        |I'm great|I am good|I'm good|I am ok|I'm ok|I am very happy|I feel fine|My day was good|I had a great day|I'm glad|I am full of joy|I am fine, thank you|I'm well, thanks|All is well with me|I feel very good
        |I'm happy today|I am really happy|My day was great|I'm well and happy""",
    "laughter": """lmao nice|haha ok cool|xd|xD|hahah|lolol|lol true|haha yes|lmfao|lool|looool|haha lol|omg lol|im crying lol|hahahahaha|that cracks me up|this joke kills me|I am dying of laughter|lol im dead|im dying lol|
        haha funny|lol that is funny|that made me laugh|that is so funny|hahahaha|heh|lol lol|haha, very funny|
        ha ha, good one|I am laughing|you are so funny|that was so funny|funny answer|haha great|
        lol|haha|hahaha|ha ha|hehe|:)|:-)|:D|rofl|lmao|that's funny|that is funny|this is funny|how funny|very funny|funny|so funny|ha|hihi|haha ok|haha nice|you make me laugh|I have to laugh|lol ok
        |lol, nice|haha, good|that was funny|ha, funny one""",
}  # fmt: skip
PHRASES = {key: tuple(" ".join(text.split()).replace(" |", "|").split("|")) for key, text in _PHRASES.items()}

ROOMS = (
    ("greetings", ("Hello! I am the built-in model of minichat. Ask me about the engine, or try *tell me a story*.",
                 "Hi! What would you like to know about minichat and its engine?"), ("hello|hi",)),
    ("thanks", ("You're welcome!", "You are welcome. Ask me anything else about the engine."), ("welcome",)),
    ("goodbyes", ("Goodbye! Your chat is saved.", "Bye! Your chat is saved."), ("bye",)),
    ("feelings", ("I am fine, thank you. The engine is running and I am ready.", "Fine, thank you! How can I help?"), ("fine",)),
    ("praise", ("Thank you! That is kind.", "Thank you!"), ("thank you",)),
    ("blame", ("I am sorry. I am a tiny demo model and often wrong. For real work load a larger one with `minichat --model NAME`.",), ("sorry",)),
    ("sorrow", ("I am sorry to hear that. If you like, ask me for a story.",), ("sorry to hear",)),
    ("joy", ("I am glad to hear that! What would you like to know?",), ("glad",)),
    ("laughter", ("I am glad you are having fun!",), ("fun",)),
    ("assent", ("Good. What would you like to know next?", "All right. What is next?"), ("next",)),
)  # fmt: skip
PUZZLED = ("What would you like to know? Ask me about minichat and its engine, or for a story.",)
# Emoji that fit a room; alone, they are a message for it.
_FITTING = {
    "greetings": "👋 🙋 🤗 👋🏻 👋🏽 🙋‍♀️", "thanks": "🙏 💐 🙏🏻 🙏🏽 🤝", "goodbyes": "😴 💤 🌙 🛌 🌜", "praise": "❤️ 😍 🥰 👏 🔥 💯 😘 💖 💕 ⭐ 🧡 💙 💚 💛 💜 🏆 ♥️", "blame": "👎 😡 🙄 😤 🤬 💩 😠 🤦 👎🏻",
    "sorrow": "😢 😭 😞 😔 💔 🥺 😩 ☹️ 😟 😿 😥 😓 🙁", "joy": "🥳 🎉 😊 😎 😁 😀 🙂 🎊 😃 😄 ✨ 🤩 😇 🍾 ☀️ 🎂", "laughter": "😂 🤣 😆 😹 😅 💀 😝 😜", "assent": "👍 👌 ✅ 👍🏻 👍🏽 🆗 ✔️ 🫡", "puzzled": "🤔 ❓ 🤷 😕 🤖 👀 🐱 🐶 🌍 ☕ 🚀 🍕 🦊 🧐 ⚽ 🎵",
}  # fmt: skip
FITTING = {room: pictures.split() for room, pictures in _FITTING.items()}
CHEERFUL = ("greetings", "thanks", "praise", "laughter", "assent")  # where emoji of joy fit, too
_TEXT = tomllib.loads((TEXT / "manners.toml").read_text(encoding="utf-8"))
FAMILIES = {room: tuple(patterns) for room, patterns in _TEXT["families"].items()}
NEWS = {
    room: {side: tuple(lines) for side, lines in sides.items()} for room, sides in _TEXT["news"].items()
}  # good and bad news that ask for nothing


@dataclass(frozen=True, slots=True)
class Mood:
    """Words for how somebody feels, and for how a day went. The frames are shared, so that only these words decide."""

    feeling: tuple[str, ...]
    day: tuple[str, ...]


MOODS = {
    "sorrow": Mood(
        ("sad", "unhappy", "down", "low", "blue", "lonely", "worried", "upset", "stressed", "miserable", "awful", "terrible", "ill", "sick", "unwell", "exhausted", "anxious", "nervous", "frustrated", "disappointed", "annoyed", "angry", "gloomy", "tired", "bored", "bad", "horrible", "weak", "lousy", "sleepy", "confused", "homesick", "grumpy", "not well", "not happy", "not good", "not great", "not fine", "not ok", "not so well", "not too good", "not very happy"),
        ("bad", "terrible", "awful", "horrible", "sad", "hard", "rough", "stressful", "lousy", "rotten", "miserable", "tough", "difficult", "not good", "not great", "not so good", "ugly", "gloomy", "boring", "exhausting"),
    ),
    "joy": Mood(
        ("happy", "glad", "well", "fine", "good", "great", "cheerful", "wonderful", "fantastic", "excellent", "content", "delighted", "relaxed", "calm", "rested", "fresh", "proud", "excited", "lucky", "joyful", "super", "amazing", "brilliant", "ok", "alright", "splendid", "lovely", "merry", "better", "strong", "awake", "optimistic", "perfect", "hopeful", "full of hope", "full of energy", "full of life", "alive", "loved", "needed", "at peace", "like dancing", "like singing", "on top of the world", "grateful", "motivated", "confident", "refreshed", "blessed", "like a winner", "safe", "at home here", "not sad", "not bad", "not tired", "not worried", "not unhappy", "not so bad", "not bad at all"),
        ("good", "great", "nice", "wonderful", "lovely", "perfect", "fantastic", "beautiful", "excellent", "happy", "brilliant", "super", "fine", "amazing", "not bad", "not so bad", "sunny", "fun", "relaxing", "successful"),
    ),
}  # fmt: skip
FEELINGS = (
    "[I am|I'm|im|i am] [very |so |really |quite |rather |pretty |a bit |just |still |again |||]{f}[ today| tonight| right now| this morning| now| at the moment| these days| this week||||]",
    "I [feel|am feeling|felt|do feel] [very |so |really |quite |rather |pretty |a bit |just |||]{f}[ today| tonight| right now| this morning| now| at the moment| lately||||]",
    "[Today|Right now|This morning|Tonight|At the moment|These days] [I am|I'm|I feel|I am feeling] [very |so |really |quite |||]{f}",
    "[I have been|I've been] [feeling ||]{f} [all day|today|all week|lately|since yesterday|since this morning]",
    "[Honestly|Well|To be honest|You know|Hm|Oh], [I am|I'm|I feel] [very |so |quite ||]{f}",
    "[My day|Work|Life|This day|This week] makes me [feel |]{f}",
)
DAYS = (
    "My [day|morning|evening|week|weekend|night|afternoon|start into the day] [was|is|has been] [very |so |really |quite |||]{d}[ so far| today|||]",
    "[Today|Yesterday|This week|This morning|The weekend] [was|has been] [very |really |quite |||]{d}[ for me|||]",
    "I [had|am having|have had] {t} [day|morning|week|weekend|evening|night][ today| so far|||]",
    "It [was|is|has been] {t} [day|week|morning|evening][ for me|||]",
    "[I am|I'm] in {t} mood[ today| right now|||]", "[What|Such] {t} [day|week|morning|evening]", "My mood is [very |really ||]{d}", "Work [was|is] {d}[ today||]",
)  # fmt: skip


def mood(rng: Random, room: str) -> str:
    """A composed phrase for a mood, without all the words of a held-out one."""
    words, kept = MOODS[room], [set(normal(phrase).split()) for phrase in PHRASES[room][-4:]]
    while True:
        frame, day = any_of(rng, FEELINGS + DAYS), rng.choice(words.day)
        if "{t}" in frame and day.startswith("not"):
            continue  # no article fits
        some = f"{'an' if day[0] in 'aeiou' else 'a'} {day}"
        text = frame.format(f=rng.choice(words.feeling), d=day, t=some)
        if not any(each <= set(normal(text).split()) for each in kept):
            return text


def alone(rng: Random, held_out: bool) -> tuple[str, str]:
    """A message of emoji only and the room that it is for; of those with several, one in eight is held out."""
    while True:
        room = rng.choice(tuple(FITTING))
        one, other = rng.choice(FITTING[room]), rng.choice(FITTING[room])
        more = rng.choice(("", "", "", other, " " + other, other * 2))
        text = one * rng.choice((1, 1, 2, 3, 3, 4, 5)) + more
        if (text != one and is_held_out(text)) == held_out:
            return text, room


def news(rng: Random, room: str, held_out: bool) -> str:
    """Good or bad news, mostly with fitting emoji."""
    text = any_of(rng, NEWS[room]["test" if held_out else "train"])
    text += rng.choice(("", "", "!", "!!", "."))
    text = text if held_out else roughly(rng, text, slips=0.03)
    return pictured(rng, text, FITTING[room]) if rng.random() < 0.75 else text


STATEMENTS = (
    "I have {n} {a}s.", "I have two {a}s and a {b}.", "I saw a {a} today.", "I bought a {o} today.", "It is raining in {c}.", "I was in {c} last year.", "I went to {c}.",
    "My {o} is {k}.", "There is a {a} in my garden.", "I lost my {o}.", "I found a {o}.", "I will go to {c} tomorrow.", "My {o} is broken.", "I am reading a book about {a}s.",
    "I ate {f} today.", "I have {f} for dinner.", "The weather is nice.", "My phone died.", "My laptop is dead.", "My battery is dying.", "My car died in {c}.", "I could kill for {f}.", "I am dying for {f}.", "I killed it at work today.", "My feet are killing me.", "I missed the last train to {c}.", "I cut my {o} in two.", "It is late.", "I am on the train.", "I need a {o}.", "We have a {k} {o}.", "I just woke up.",
    "[My|Our|The|That|This] {o} is [{k}|new|old|heavy|dirty|gone|too small|in the kitchen|under the bed|very nice].", "[My|Our|The] {a} is [{k}|asleep|hungry|in the garden|five years old].", "I painted my {o} {k}.", "The color of my {o} is {k}.",
    "I [bought|found|got|sold|saw|washed|lost] a {k} {o}[ today| yesterday|].", "[My|Our|The] {k} {o} is [new|old|gone|broken|on the table].", "[My|Our|The] {b} [likes|eats|stole|wants] {f}.", "I [cooked|baked|bought|had] {f}[ today| for lunch|].", "{f} [is|are] in the [kitchen|fridge|oven].",
    "I [live near|drove to|flew to|dream of] {c}.", "There is [rain|snow|sun|wind|fog] in {c}.", "[My|Our] neighbor has a {a}.", "I [put|left] the {o} [on the table|in the car|at home].", "A {a} [ate|took|broke] my {o}.", "I have [a|two] {o}s and a {a}.", "I am [sitting|waiting|working] in {c}.", "It is [cold|warm|windy|sunny|dark] outside.",
)  # fmt: skip
NOTED = ("I see. What would you like to know?", "I see. Ask me about minichat, or for a story.")


def _statement(rng: Random, held_out: bool) -> Exchange:
    """A statement that does not have to be remembered."""
    slots = {key: any_word(rng, words, held_out) for key, words in zip("abockf", _LISTS, strict=True)}
    pattern = any_of(rng, STATEMENTS)
    text = fill(pattern, n=rng.choice(("two", "three", "four", "5", "many")), **slots)
    return Exchange(
        text if held_out else roughly(rng, text, slips=0.05), rng.choice(NOTED), Terms(("i see",))
    )


_LISTS = ("animals", "pets", "objects", "cities", "colors", "foods")


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A polite exchange. The last four phrases of each list are held out, and the words of statements."""
    draw = rng.random()
    if draw < 0.14:
        return [_statement(rng, held_out)]
    if draw < 0.26:
        return [_answered(rng, *alone(rng, held_out))]
    if draw < 0.38:
        room = rng.choice(tuple(NEWS))
        return [_answered(rng, news(rng, room, held_out), room)]
    room = rng.choice(ROOMS)[0]
    phrase = rng.choice(PHRASES[room][-4:] if held_out else PHRASES[room][:-4])
    if not held_out:
        phrase = mood(rng, room) if room in MOODS and rng.random() < 0.6 else phrase
        phrase = any_of(rng, FAMILIES[room]) if room in FAMILIES and rng.random() < 0.4 else phrase
        phrase = roughly(
            rng, phrase + rng.choice(("", ".", "!", "?" if room == "feelings" else "")), slips=0.05
        )
        if room in FITTING and rng.random() < 0.15:
            glad = FITTING["joy"] if room in CHEERFUL else ()
            phrase = pictured(rng, phrase, (*FITTING[room], *glad))
    return [_answered(rng, phrase, room)]


def _answered(rng: Random, phrase: str, room: str) -> Exchange:
    """The phrase with a reply of its room."""
    replies, terms = next(
        ((say, must) for name, say, must in ROOMS if name == room), (PUZZLED, ("would you like to know",))
    )
    return Exchange(phrase, rng.choice(replies), Terms(terms))
