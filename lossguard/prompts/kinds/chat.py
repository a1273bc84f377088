"""Chat: advice, explanations, small writing tasks, plans and opinions."""

from __future__ import annotations

from lossguard.prompts.distinct_text import Words
from lossguard.prompts.kinds.vocabulary import COMMON, words

WORDS: Words = {
    **COMMON,
    "person": words(
        """my neighbour, my older sister, my flatmate, a friend from school, my cousin, my new boss, our landlord, my
        aunt, my running partner, a former colleague, my nephew, our choir leader, the man next door, my study partner,
        my daughter, my grandfather, a woman from work, our youngest trainee"""
    ),
    "obstacle": words(
        """has only {10..40} minutes a day, is afraid of looking silly, lives far from any club, has very little money,
        gives up after {2..9} weeks, works changing shifts, has a sore shoulder, shares a tiny flat, gets bored by rules,
        has {2..5} small children, is left-handed, cannot read {town} maps, hates getting up early, prefers to be alone,
        failed {2..9} times, expects progress by {weekday}, is over {60..85}, travels for work every week"""
    ),
    "ask": words(
        """What do you suggest?, Please write a gentle weekly plan.,
        Which mistakes are typical?, How can I encourage without pushing?,
        Describe {2..5} ways to begin., What equipment is needed?,
        Give me {3..7} questions to ask., How can we measure progress?,
        Write a {mood} note about it., How would a good teacher begin?,
        Describe a typical {weekday}., Should we wait until {month}?,
        Draft a message inviting {name}., What could we do together instead?"""
    ),
    "tone": words(
        """Keep it warm and practical., Use plain words for {audience}., Write {2..6} full paragraphs., Use {3..9} numbered
        points with reasons., Be honest about the {mood} side., Add {2..4} surprising ideas., Avoid clichés about {hobby}.,
        Mention costs in {town}., Include a story about {name}., Write like a patient {job}., Say what {name} might doubt.,
        Finish with a question to {name}., Give examples from {town}., Begin with {thing}., Sound like {audience}.,
        Stay {mood} to the end., Mention a {animal}., Compare it with {hobby}."""
    ),
    "event": words(
        """a farewell party, a street festival, a school concert, a family reunion, a book swap, a repair afternoon,
        a surprise birthday, a charity run, an open kitchen, a science fair, a quiet retirement dinner, a garden opening,
        a film night, a chess tournament, a harvest lunch, a winter picnic, a photo exhibition, a language exchange"""
    ),
    "trouble": words(
        """rain is forecast, {5..90} guests eat no meat, the hall has no heating, nobody owns {thing}, the
        budget was cut in half, {2..19} helpers are ill, parking is impossible, many guests do not know each other,
        children will come too, the neighbours dislike noise, power fails often, the date was moved to {weekday}, a {animal} lives there, {name} from {town} is offended, the {job} wants {10..90} euros"""
    ),
    "form": words(
        """a letter, a diary entry, a dialogue, a short speech, a fairy tale, a radio script, a travel report, a
        newspaper column, a poem in four stanzas, a bedtime story, an interview, a postcard that got too long, a monologue,
        a scene for two actors, a legend, a museum label with a long footnote"""
    ),
    "mood": words(
        """cheerful, wistful, mysterious, solemn, playful, tender, hopeful, dry, dreamy, suspenseful, grateful, restless,
        gloomy, bold, sleepy, proud, curious, formal, ironic, calm, nervous, kind, lonely, witty, stern, gentle"""
    ),
    "twist": words(
        """a lost key, an unexpected snowfall, a letter that arrives years late, a wrong train, a borrowed coat, a
        song nobody can name, a talking weather vane, a broken clock, a shared umbrella, a map with a hole in it, a
        forgotten recipe, a missing chess piece, a very small elephant, a stopped elevator, a message in a bottle, a {colour} coin, a power cut, an old photograph of {town}, a door that was not there before, a lost dog"""
    ),
    "option": words(
        """a bicycle, a bus pass, a dog, a shared flat, a garden, strong tea, paper books, an e-reader, a small town,
        evening exercise, a language course, night trains, a cooking class, a diary, a camera, an open weekend, an old radio,
        a sewing machine, a season ticket, a house by the sea, a part-time job, a quiet office, a second-hand car, a boat,
        {hobby}, a week in {town}, {2..9} weeks off, a new kitchen, a choir, lessons from a {job}"""
    ),
    "choice": ("{option:a} or {option:b}", "{option:b}, {option:c} or {option:d}"),
    "device": words(
        """a story about a {animal}, a comparison with cooking, three everyday examples, a talk between {name} and {name}, a simple experiment, a picture in words, questions and answers, a short history, a common
        misunderstanding, an example from {town}, one thing you can try at home, a comparison with a {job}'s work"""
    ),
}

FULL = (
    "{person:p} wants to start {hobby} but {obstacle}. {ask} {tone} For context, we live near {town}, and a"
    " {job} offered to help on {weekday}s, and {person:q} {obstacle:o}, too.",
    "In {month} I am organising {event} at the {place} in {town} for {15..140} people, and {trouble}. My"
    " helpers are {name:a}, a {job:a}, and {name:b}, a {job:b}. Give each of us {2..6} tasks. {tone} We can spend about"
    " {80..900} euros, and {food} has to be on the table.",
    "Write {form} in which a {job:a} called {name:a} meets a {job:b} at the {place}. Set it on a {mood} {weekday} in {month} around {twist}. Let {food} appear once, and end with {name:a}"
    " deciding about {hobby}.",
    "Explain {topic} to {audience:a}. Use {device:a} and then {device:b}. {tone:a} Next, let"
    " {audience:b} ask {2..5} questions, with answers. {tone:b}",
    "I have to decide between {choice}. I am a {job} in {town}, I like {hobby:a}, and {person} {obstacle}."
    " Compare both as a {mood} {job:b} would; then"
    " let {name} from {town:b} decide. {tone}",
    "Answer this {mood:m} mail: '{name:a} here from the {place} in {town}. The {2..60} {thing:t} you"
    " ordered in {month:m} are late because {twist} got in the way. Would {4..40} {thing:u} do, or does"
    " {name:b} wait until {month:n}?' Reply as a {mood} {job}. {tone}",
    "Plan a {2..9} day trip from {town:a} to {town:b} for {person} and me in {month}. We enjoy {hobby:a} and"
    " {hobby:b}, would love to see a {place}, and must try {food}. One of us {obstacle}. {tone}",
)

BRIEF = (
    "Explain {topic} to {audience} with {device}.",
    "Write {form} about {twist} and a {job} in {town}. Make it {mood}.",
    "Tell a {mood} story about a {animal} who finds {twist} in a {place}.",
    "{person} wants to try {hobby} but {obstacle}. What should we do?",
    "How would you plan {event} in {town} if {trouble}?",
    "Describe a {place} in {month} as a {job} would see it, in detail.",
    "Should a {job} choose {choice}? Give several reasons.",
    "Give a recipe for {food} with {3..9} steps for {audience}.",
    "Write a {mood} conversation between a {animal:a} and a {animal:b} about {hobby}.",
    "What can a {job:a} learn from a {job:b} about {hobby}? Explain.",
)
