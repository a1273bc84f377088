"""Long: documents of many sentences (diaries, minutes, logs, reports, lists, letters) with a task at the end."""

from __future__ import annotations

from dataclasses import dataclass

from lossguard.prompts.distinct_text import Words
from lossguard.prompts.kinds.vocabulary import COMMON, words

WORDS: Words = {
    **COMMON,
    "weather": words(
        """fog, drizzle, bright sun, hail, a warm wind, heavy snow, thunder, frost, low clouds, a clear sky, sleet, a hot haze, endless rain, a red sunrise, a cold breeze, black ice, a summer storm, dull
        grey light, a sandstorm, mild air, a rainbow, moonlight, northern lights, a dust devil"""
    ),
    "adverb": words(
        """slowly, twice, without a word, in a hurry, by mistake, with great care, after lunch, at dawn, in secret, as always,
        out of spite, for {2..50} minutes, at {1..11} o'clock, on {weekday}, with {name}, like a {job}, in {month}, for {name},
        near {town}, before {name} came, once more, badly, behind the {place}, thanks to {name}, singing, barefoot"""
    ),
    "task": words(
        """Summarise it in {3..9} sentences, Continue the text for {2..5} paragraphs, List all people and
        what they did, Write a reply to the author, Retell it as {name} saw it, Turn it into a table, Point out contradictions and gaps, Write {4..9} questions about it with answers, Rewrite it for children,
        Explain what {name} should do next, Write a news report for {town}, Describe the mood and how it
        changes, Order the events by importance, Draft a letter to {town} about the most urgent matter"""
    ),
    "extra": words(
        """Pay attention to {thing}., Mention {food} if it occurs., Leave out everything about {hobby}., Quote at least {2..5} short
        phrases., Say what is uncertain., Write for a {job}., Keep the numbers exact., Use the past tense., End with one
        recommendation., Compare beginning and end., Keep a friendly tone., Begin with what surprised you."""
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Genre:
    """A kind of document: how it begins, what its sentences are, and what goes between them."""

    opening: tuple[str, ...]
    sentences: tuple[str, ...]
    separator: str = " "


GENRES = (
    Genre(
        opening=(
            "Diary of {name}, {job}, on the way from {town:a} to {town:b}:\n\n",
            "Notes that {name} wrote in {month} near the {place} of {town}:\n\n",
        ),
        sentences=(
            "On {weekday} we woke to {weather} and walked {3..29} kilometres towards {town}.",
            "{name:a} bought {2..40} {thing} from a {job} and regretted it by noon.",
            "For supper there was {food}, which {name} had cooked {adverb}.",
            "A {animal} followed us as far as the {place} and left with half of the {food}.",
            "I tried {hobby} again, {adverb}, and managed {2..50} minutes.",
            "Near the {place:a} a {job} told us that the road to {town} was closed for {2..19} days.",
            "{name:a} and {name:b} argued about {topic} until {weather} drove us inside.",
            "My {colour} coat is in {town} with {2..30} {thing}.",
            "In the evening somebody sang about a {animal}, and {name} wept {adverb}.",
            "We paid {4..95} euros for two beds above a {place}.",
            "The {job} in {town} repairs {thing} and sells {food}, both {adverb}.",
            "I dreamt that a {animal:a} and a {animal:b} explained {topic}.",
            "{name} has decided to give up {hobby} and become a {job}.",
            "Towards {town} the land is flat, and with {weather} one sees nothing but a {place}.",
        ),
    ),
    Genre(
        opening=(
            "Minutes of the meeting at the {place} in {town}, {month} {1..28}. Present: {name:a}, {name:b}, {name:c}.\n\n",
            "Protocol of the {hobby} club of {town}, {weekday}, {17..20}:{10..55}, kept by {name}:\n\n",
        ),
        sentences=(
            "{name} reports that {5..90} {thing} are missing since {month}.",
            "The {job} asks for {40..990} euros to repair the {place}; {2..19} in favour, {1..9} against.",
            "{name:a} proposes {hobby} on {weekday}s, {name:b} would rather talk about {topic}.",
            "It is agreed to fetch {food} for {12..180} people, {adverb}.",
            "Nobody knows who let the {animal} into the {place}.",
            "{name} will write to the {job} in {town} before {month} {1..28}.",
            "The treasurer counts {200..4800} euros, {3..60} less than in {month}.",
            "A letter from {town} offers {10..400} {colour} {thing} in exchange for {food}.",
            "{name:a} apologises to {name:b} for what was said about {hobby}.",
            "The question of the {animal} is postponed by {2..9} weeks because of {weather}.",
            "{name} is thanked for having painted the {place} {colour}, {adverb}.",
            "From {month} on, {thing} cost {2..30} euros more, says the {job}.",
            "A {job} from {town} speaks {10..75} minutes about {topic}.",
        ),
        separator="\n- ",
    ),
    Genre(
        opening=(
            "Log of the control room at the {place}, {town}, {weekday}:\n\n",
            "Station book, {month}, kept by {name} ({job}):\n\n",
        ),
        sentences=(
            "{0..23}:{10..59} pump {1..40} at {10..99} percent, valve {2..88} {colour}",
            "{0..23}:{10..59} {name} on duty, {weather}, sensor {100..999} reads {2..97}.{1..9}",
            "{0..23}:{10..59} warning {100..999}: level {3..78} below {79..160}, {job} called",
            "{0..23}:{10..59} delivery of {4..300} {thing} for {town}, signed by {name}",
            "{0..23}:{10..59} a {animal} in sector {2..64}, left {adverb}",
            "{0..23}:{10..59} restart of unit {2..90} after {4..58} seconds, code {1000..9999}",
            "{0..23}:{10..59} {name:a} hands over to {name:b}, {2..40} open orders",
            "{0..23}:{10..59} test {10..99} passed, test {100..199} failed with {3..70} retries",
            "{0..23}:{10..59} telephone call from {town} about {food}, no action",
            "{0..23}:{10..59} {weather}; gate {2..45} closed {adverb} by the {job}",
            "{0..23}:{10..59} pressure {1..9}.{10..99} bar, temperature {5..88}.{1..9} degrees, line {colour}",
        ),
        separator="\n",
    ),
    Genre(
        opening=(
            "Inventory of the {place} in {town}, taken by {name} in {month}:\n\n",
            "What the {job} {name} keeps in {2..30} boxes:\n\n",
        ),
        sentences=(
            "box {1..400}: {2..90} {colour} {thing}, {3..60} euros, for {name}",
            "shelf {1..80}: {food}, {2..40} portions, to be eaten before {month} {1..28}",
            "drawer {2..150}: a letter from {town} about {topic}",
            "box {1..400}: {thing:a} and {thing:b}, {10..99} percent damaged by {weather}",
            "hook {1..60}: keys to the {place}, last used by the {job}",
            "box {1..400}: everything for {hobby}, borrowed by {name} {2..50} days ago",
            "corner {2..19}: a stuffed {animal}, {colour}, {1..9}.{1..9} kilograms",
            "shelf {1..80}: {3..90} {thing}, a gift of the {job} from {town}",
            "crate {100..999}: {2..12} dozen {thing}, bought in {month} for {20..800} euros",
            "wall {1..9}: {colour} map of {town}, {2..40} pins",
        ),
        separator="\n* ",
    ),
    Genre(
        opening=(
            "Report on {topic}, written by a {job} for the town of {town}:\n\n",
            "From a lecture that {name} gave in {town} about {topic}:\n\n",
        ),
        sentences=(
            "Of {200..980} people asked in {town}, {10..98} percent had never thought about {topic}.",
            "A {job} may compare it with {hobby}, though {name} called that comparison lazy.",
            "In {month} the {place} lent us {2..60} {thing} for a first trial.",
            "The trial failed {adverb}: {weather} spoiled {3..90} of {91..400} samples.",
            "What a {animal} does by instinct, a {job} must learn in {2..19} years.",
            "The second trial, with {colour} {thing}, took {3..58} days and cost {100..9000} euros.",
            "Compare {town:a} with {town:b}: {2..49} cases against {50..300}, in the same {month}.",
            "{name:a} doubts this and points to {topic}; {name:b} agrees only {adverb}.",
            "One cannot explain {topic} without mentioning the {animal}.",
            "Our budget of {1000..9000} euros went into {thing}, {food} and {hobby}.",
            "Whoever visits the {place} in {town} can see {2..40} of the results.",
            "An older {job} remembered {weather} in {month} and {4..90} lost {thing}.",
            "The figure for {month:a} was {10..400}, for {month:b} only {2..9}.",
        ),
    ),
    Genre(
        opening=(
            "Dear {name},\n\nit is {weekday}, there is {weather} over {town}, and {name:b} sends greetings. ",
            "To the {job} of {town}:\n\nI write to you about the {place} and about {topic}. ",
        ),
        sentences=(
            "Since {month} the {animal} sleeps in the {place}, and {name} feeds it {food}.",
            "You asked for {2..60} {thing}; I found {1..40}, most of them {colour}.",
            "{name:a} married a {job} from {town} and took up {hobby}.",
            "Do you remember the {place} where we ate {food} in {weather}?",
            "I still owe the {job} {5..95} euros and {2..20} {thing}.",
            "In {town}, they say, {name} talks about {topic}.",
            "My knee hurts, the {thing} are gone, and {name} has not written for {2..40} weeks.",
            "Please bring {food}, {3..30} {thing} and your good {colour} hat.",
            "Every {weekday} a {job} knocks {adverb} and asks for {name}.",
            "I have tried {hobby:a}, {hobby:b} and even {hobby:c}, all {adverb}.",
            "The {animal:a} of our neighbour chased a {animal:b} through the {place}.",
            "Whatever {name:a} says about {name:b}, it was the {job} who broke the {thing}.",
        ),
    ),
)

CLOSING = (
    "\n\n{task:a}. {extra:a} {extra:b}",
    "\n\n{task:a}. {extra:a}",
    "\n\n{task:a}. Then: {task:b}. {extra:a}",
)

BRIEF = (
    "{name:a} reached {town} in {weather} with {2..40} {thing}. A {animal} waited at the {place}. {task}.",
    "'{food} again', said the {job} of {town}, and {name} left {adverb} for the {place}. {task}.",
    "It was {month}, the {place} was closed, and {name} thought about {topic}. {task}.",
    "Report: {2..60} {thing} lost, {weather}, one {animal} seen near {town}. {task}.",
    "Dear {name:a}, since {weekday} a {job} lives in the {place} and teaches {hobby}. {task}.",
    "Minutes: {name:a} wants {hobby}, {name:b} wants {food}, the {job} wants silence. {task}.",
)
