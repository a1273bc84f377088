"""Reasoning: orderings, schedules, liars, rules, causes, analogies and plans with constraints."""

from __future__ import annotations

from lossguard.prompts.distinct_text import Words
from lossguard.prompts.kinds.vocabulary import COMMON, words

WORDS: Words = {
    **COMMON,
    "compare": words(
        "taller than, older than, faster than, quieter than, richer than, more patient than, stronger than, busier than"
    ),
    "explain": words(
        """Explain each step to {audience}., Reason step by step like a {job}., Say what {name} would need to know., Answer and
        defend it against {name}., List {2..6} possibilities., Is the solution unique?, Name {2..5} clues you use., Name a
        mistake {name} could make., Write {3..8} numbered points., Say how sure you are., Convince {audience}., Think aloud as a
        {job} would., Which part would puzzle {name}?, Compare {2..4} answers., Explain what {thing} have to do with it."""
    ),
    "rule": words(
        """every {animal:x} is awake at night, nobody who likes {hobby:x} owns {thing:x}, whoever visits {town:x} sends a
        postcard, all {job:x}s own {colour:x} boots, some {thing:y} are made of glass, no {job:y} eats {food:x}, each
        {animal:y} has a name, only a {job:z} may open the {place:x}, anyone who carries {thing:z} is on the way to {town:y}"""
    ),
    "clue": words(
        """{name} did not sit next to {name}, the {job} arrived before {name}, the person with the {colour} bag likes {hobby},
        {name} never eats {food}, whoever came from {town} brought {thing}, {name} left after the {job}, the {job} has a
        {animal}, the {colour} door leads to the {place}, {name} and the {job} spoke only once, someone from {town} wore {colour}"""
    ),
    "fact": words(
        """the lamp in the {place} was still warm, {2..30} {thing} were missing, the window faced {town}, the clock had stopped
        at {1..12}, a smell of {food} was in the air, the {animal} did not make a sound, two cups stood on the table, the floor
        was wet, a ticket to {town} lay under the chair, the radio played, the snow outside showed no tracks, the door was
        locked from inside, a {colour} thread hung on the nail, someone had moved the {thing}, a note mentioned {hobby}"""
    ),
    "change": words(
        """sales of {thing} rose by {5..60} percent, fewer people visited the {place}, the {animal} came back to the valley,
        more people took up {hobby}, the price of {food} fell by half, the trains were late {2..6} days in a row, {town}
        banned cars downtown, the {job}s went on strike for {2..9} days, it rained for {6..40} days, a new bridge opened"""
    ),
    "statement": words(
        """exactly one of us lies, {name:k} is lying, the {thing} are in the {place}, I have never been to {town}, at least two of
        us are honest, if {name:k} is honest then so am I, I like {hobby} and {name:k} does not, all of us lie on {weekday}s"""
    ),
}

FULL = (
    "Five people, {name:a}, {name:b}, {name:c}, {name:d} and {name:e}, stand in a row at the {place} in {town}."
    " {name:a} is somewhere left of {name:c}. {name:d} is {1..2} places from {name:b}. Besides, {clue:a}, and {clue:b}."
    " Who stands at place {1..5}? {explain}",
    "{name:a} says: '{statement:a}.' {name:b} says: '{statement:b}.' A {job} from {town} adds: '{statement:c}.' Liars always"
    " lie. Can {name:a} be honest, and the {job}? {explain}",
    "Suppose that {rule:a}, that {rule:b}, and that {rule:c}. Now {name:a}, a {job}, is on the way to {town} with {2..40}"
    " {thing}. Does it follow that {name:a} likes {hobby}? {explain} Then add a rule about {place}s.",
    "At the {place} in {town}, on a {weekday} in {month}, {fact:a}; {fact:b}; {fact:c}; and {fact:d}. {name:a}, a"
    " {job:a}, and {name:b}, a {job:b}, disagree. Why was it that"
    " {fact:a}? {explain}",
    "In the year that {change:a}, {change:b}. A newspaper in {town} blamed a {animal}. Give {2..5} other explanations to {name:y}, use data from {town:z}, and judge whether {name}, a {job}, rightly thinks that {change:c}"
    " for that reason. {explain}",
    "{name:a}, {name:b}, {name:c} and {name:d} each have another job ({job:a}, {job:b}, {job:c}, {job:d}) and another"
    " hobby ({hobby:a}, {hobby:b}, {hobby:c}, {hobby:d}). The {job:a} does not like {hobby:b}. {name:b} is no {job:c}."
    " {name:d} likes {hobby:a}. Also, {clue}. Who does what? {explain}",
    "Schedule these for {weekday:a} to {weekday:b} in {town}: {hobby:a} ({10..95} minutes), the {place:a} ({20..98} minutes), cooking {food} ({15..99} minutes), and fetching {3..70} {thing} before {9..16}:{10..50}. {name:a} is free"
    " only in the mornings; {name:b} never before {10..13}:{10..45}; moreover {fact}. {explain}",
    "Which does not fit: a {job:a} in {town:a}, a {animal:a} in a {place:a}, {2..30} {colour:a} {thing:a}, or"
    " {food}? Give {2..6} reasons each. Then: {animal:a} is to {place:a} as"
    " {job:a} is to what? {explain}",
)

BRIEF = (
    "{name:a} is {compare} {name:b}, and {name:b} is {compare} {name:c}. What follows? {explain}",
    "If {rule:a}, and {name} is a {job}, what can we conclude? {explain}",
    "{fact:a}, and {fact:b}. What happened at the {place}? {explain}",
    "After {change:a}, {change:b}. Cause and effect? Discuss.",
    "{name:a} says: '{statement}.' Can that be true? {explain}",
    "How are a {job} and a {animal} alike? Give several reasons.",
    "You have {2..40} {thing:t}, a {colour} bag and {food}. How do you reach {town}?",
    "Is it wise for a {job} to trade {thing:t} for {thing:u}? Argue both sides.",
    "Find a pattern in {2..9}, {10..29}, {30..66}, {67..140} and test it.",
    "What would change in {town} if {change}? Reason in several steps.",
)
